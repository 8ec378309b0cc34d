"""Builds a pretended candidate."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from exactgraph.machine import note

from exactgraph.canonical import write_json


def run(arguments: Namespace) -> None:
    note("build", arguments.candidate)
    plan = {"stage": "build", "code": arguments.code, "candidate": arguments.candidate, "status": "built"}
    write_json(Path(arguments.subject) / "candidates" / arguments.candidate / "plan.json", plan)
