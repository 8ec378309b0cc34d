"""``environment``: the environment of a key, from the probe that found it, without what differs between identical GPUs."""

from __future__ import annotations

from pathlib import Path

from exactgraph.canonical import read_json, write_json
from exactgraph.refusal import UserError


def run(folder: Path, probes: Path) -> None:
    """Write ``environment.json`` of ``<model>@<commit>/<device>/<env>`` from ``<probes>/*/probe.json``."""
    for path in sorted(probes.glob("*/probe.json")):
        found = read_json(path)
        if (found["device"]["id"], found["environment"]["key"]) == (folder.parent.name, folder.name):
            write_json(
                folder / "environment.json",
                {name: found[name] for name in ("device", "environment", "precision")},
            )
            return
    raise UserError(
        f"No slot below {probes} was last seen as {folder.parent.name} in environment {folder.name}; run the probe."
    )
