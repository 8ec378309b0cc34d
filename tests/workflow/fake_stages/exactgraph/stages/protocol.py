"""Writes the protocol whose digest the folder is named after."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from exactgraph.machine import note

from exactgraph.canonical import read_json, short, write_json
from exactgraph.workflow.config import protocol_of
from exactgraph.workflow.keys import Key


def run(arguments: Namespace) -> None:
    note("protocol", "")
    key = Key.parse(arguments.subject)
    protocol = protocol_of(key, read_json(arguments.config))
    assert short(protocol) == key.protocol
    write_json(Path(arguments.subject) / "protocol.json", protocol)
