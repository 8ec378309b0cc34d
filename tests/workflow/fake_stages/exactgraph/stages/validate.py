"""Validates a pretended candidate: wrong-ulp is caught, and so is what the machine says is."""

from __future__ import annotations

import os
from argparse import Namespace
from pathlib import Path

from exactgraph.machine import machine, note
from exactgraph.protocol.traces import trace

from exactgraph.canonical import read_json, write_json
from exactgraph.protocol.compare import same


def run(arguments: Namespace) -> None:
    note("validate", arguments.candidate)
    folder = Path(arguments.subject)
    rejected = arguments.candidate in ("wrong-ulp", *machine().get("rejected", []))
    exact = same(trace(), read_json(folder / "frozen.json")["sets"]) and not rejected
    validation = {"stage": "validate", "code": arguments.code, "process": {"pid": os.getpid()}}
    validation |= {"candidate": arguments.candidate, "status": "exact" if exact else "rejected"}
    write_json(folder / "candidates" / arguments.candidate / "validation.json", validation)
