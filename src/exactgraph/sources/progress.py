"""One kind of progress bar: bytes, on stderr, and only where a person watches."""

from __future__ import annotations

import sys

from tqdm import tqdm


def bar(what: str, total: int) -> tqdm:
    """A bar over ``total`` bytes, silent when stderr is not a terminal."""
    return tqdm(total=total, desc=what, unit="B", unit_scale=True, unit_divisor=1000, disable=not sys.stderr.isatty())
