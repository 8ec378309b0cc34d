"""Confirms the first of the pretended ranking."""

from __future__ import annotations

import os
from argparse import Namespace
from pathlib import Path

from exactgraph.machine import note
from exactgraph.protocol.traces import trace

from exactgraph.canonical import read_json, write_json
from exactgraph.protocol.compare import same


def run(arguments: Namespace) -> None:
    note("confirm", "")
    print(f"{arguments.jobs} at a time")
    folder = Path(arguments.subject)
    assert same(trace(), read_json(folder / "frozen.json")["sets"])
    order = [entry["candidate"] for entry in read_json(folder / "order.json")["order"]]
    confirmation = {"stage": "confirm", "code": arguments.code, "process": {"pid": os.getpid()}, "attempts": order}
    write_json(folder / "confirmation.json", confirmation)
