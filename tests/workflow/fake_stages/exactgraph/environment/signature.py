"""What a look at the pretended machine shows."""

from __future__ import annotations

from exactgraph.machine import machine


def signature() -> str:
    return f"{machine()['gpu']} {machine()['torch']}"
