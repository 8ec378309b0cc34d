"""Seeded random bits with a name: the stream of one tensor does not depend on any other."""

from __future__ import annotations

import hashlib

import numpy as np


def stream(seed: int, name: str) -> np.random.SFC64:
    """The bit generator for ``name`` under ``seed``.

    numpy keeps the raw stream of a bit generator, and of ``SeedSequence``, the same for good (NEP 19); its distributions
    it may change, so only raw bits are drawn from it.
    """
    key = hashlib.sha256(f"exactgraph|{seed}|{name}".encode()).digest()
    return np.random.SFC64(np.random.SeedSequence(int.from_bytes(key, "little")))
