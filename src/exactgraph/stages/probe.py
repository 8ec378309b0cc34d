"""``probe``: what the place where a slot's jobs run is."""

from __future__ import annotations

from pathlib import Path

from exactgraph.canonical import write_json
from exactgraph.workflow.serving import ANY


def run(slot: str, precision: str, visible: str, out: Path) -> None:
    """Write ``probe.json``. ``precision`` is the configured one, ``auto`` or a dtype; ``visible`` names the slot's GPUs."""
    from exactgraph.environment.gpulock import only
    from exactgraph.environment.probe import probe

    with only(None if visible == ANY else [visible]):
        write_json(out, probe(slot, precision))
