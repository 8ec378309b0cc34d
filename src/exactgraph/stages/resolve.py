"""``resolve``: a source's spec becomes a commit, written down."""

from __future__ import annotations

from pathlib import Path

from exactgraph.canonical import write_json
from exactgraph.sources.resolve import resolve


def run(spec: str, out: Path) -> None:
    """Write ``sources/<model>.json``."""
    write_json(out, resolve(spec))
