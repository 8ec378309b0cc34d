"""Writes a pretended receipt."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from exactgraph.machine import note

from exactgraph.canonical import file_digest, write_json


def run(arguments: Namespace) -> None:
    note("receipt", "")
    folder = Path(arguments.subject)
    evidence = {
        str(file.relative_to(folder)): file_digest(file) for file in folder.rglob("*.json") if file.name != "receipt.json"
    }
    write_json(folder / "receipt.json", {"code": arguments.code, "evidence": evidence})
