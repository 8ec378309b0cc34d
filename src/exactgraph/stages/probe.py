"""``probe``: what the place where a slot's jobs run is."""

from __future__ import annotations

from pathlib import Path

from exactgraph.canonical import write_json


def run(slot: str, precision: str, out: Path) -> None:
    """Write ``probe.json``. ``precision`` is the configured one, ``auto`` or a dtype."""
    from exactgraph.environment.probe import probe

    write_json(out, probe(slot, precision))
