"""Copies the probe's environment to its key."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from exactgraph.machine import note

from exactgraph.canonical import read_json, write_json


def run(arguments: Namespace) -> None:
    note("environment", "")
    folder = Path(arguments.subject)
    for file in arguments.probes.glob("*/probe.json"):
        probe = read_json(file)
        if (probe["device"]["id"], probe["environment"]["key"]) == (folder.parent.name, folder.name):
            write_json(folder / "environment.json", {name: probe[name] for name in ("device", "environment", "precision")})
