"""Recordings of the pretended package: it has no speech models."""

from __future__ import annotations

LONGEST_ANSWER = 444


def windows(name: str) -> list[dict[str, str]]:
    raise NotImplementedError
