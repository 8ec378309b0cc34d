"""Freezes the pretended baselines."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from exactgraph.machine import note

from exactgraph.canonical import digest, read_json, write_json
from exactgraph.protocol.compare import same
from exactgraph.workflow.handoff import reference_of


def run(arguments: Namespace) -> None:
    note("freeze", "")
    print(f"{arguments.jobs} at a time")
    folder = Path(arguments.subject)
    sets = [read_json(file)["sets"] for file in sorted(folder.glob("baseline/run*.json"))]
    assert all(same(sets[0], other) for other in sets)
    frozen = {"stage": "freeze", "code": arguments.code, "status": "frozen", "attention": "default"}
    frozen |= {"weights_digest": "0" * 64, "sets": sets[0], "traces_digest": digest(sets[0])}
    write_json(folder / "frozen.json", frozen)
    write_json(folder / "reference.json", reference_of(frozen))
