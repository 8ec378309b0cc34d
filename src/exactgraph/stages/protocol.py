"""``protocol``: what is asked under a key, in a file that a person can read."""

from __future__ import annotations

from pathlib import Path

from exactgraph.canonical import read_json, short, write_json
from exactgraph.refusal import UserError
from exactgraph.workflow.config import protocol_of
from exactgraph.workflow.keys import Key


def run(folder: Path, config: Path) -> None:
    """Write ``protocol.json`` from the resolved configuration. Its digest must be the folder's name."""
    protocol = protocol_of(Key.parse(folder), read_json(config))
    if short(protocol) != folder.name:
        raise UserError(f"The configuration asks for {short(protocol)} now, not {folder.name}; run the workflow again.")
    write_json(folder / "protocol.json", protocol)
