"""Seeded random bits and values with a name: the stream of one tensor does not depend on any other."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

_CHUNK = 1 << 22  # elements in one step: 32 MB of random bits
_EVEN = np.uint64(0x0000FFFF0000FFFF)  # the even 16-bit quarters of 64 bits
_SUM_MEAN = 2 * 0xFFFF  # of four uniform 16-bit integers
_SUM_STD = math.sqrt((2**32 - 1) / 3)


def stream(seed: int, name: str) -> np.random.SFC64:
    """The bit generator for ``name`` under ``seed``.

    numpy keeps the raw stream of a bit generator, and of ``SeedSequence``, the same for good (NEP 19); its distributions
    it may change, so only raw bits are drawn from it.
    """
    key = hashlib.sha256(f"exactgraph|{seed}|{name}".encode()).digest()
    return np.random.SFC64(np.random.SeedSequence(int.from_bytes(key, "little")))


def normal(
    shape: tuple[int, ...], mean: float, std: float, seed: int, name: str
) -> Iterator[np.ndarray[Any, np.dtype[np.float32]]]:
    """Nearly normal values in row-major order, as flat fp32 chunks: the stream of ``name`` under ``seed``."""
    bits = stream(seed, name)
    scale = np.float32(std / _SUM_STD)
    for start in range(0, math.prod(shape), _CHUNK):
        count = min(_CHUNK, math.prod(shape) - start)
        raw = bits.random_raw(count)
        pairs = ((raw & _EVEN) + ((raw >> np.uint64(16)) & _EVEN)).astype("<u8", copy=False).view("<u4").reshape(count, 2)
        # A sum of four uniform integers is near enough to normal and, unlike a normal variate, exact everywhere.
        sums = (pairs[:, 0] + pairs[:, 1]).astype(np.int32) - np.int32(_SUM_MEAN)
        yield sums.astype(np.float32) * scale + np.float32(mean)
