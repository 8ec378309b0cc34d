"""``receipt``: the evidence of one key, as one statement."""

from __future__ import annotations

from pathlib import Path

from exactgraph.receipts.statement import write


def run(folder: Path) -> None:
    """Write ``receipt.json`` from the files of the key's folder."""
    write(folder)
