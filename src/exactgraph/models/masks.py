"""Attention masks under capture.

transformers leaves a mask out where none is needed (one token, no padding), but not while it believes to be traced, and it
counts stream capture as tracing. A mask that eager has not would select another attention kernel, so during capture the
question is answered as in eager. Only calls without padding are captured, so leaving the mask out stays right.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch


def _not_tracing(tensor: Any = None) -> bool:
    return False


@contextmanager
def masks_as_in_eager() -> Iterator[None]:
    """Build masks in the block as eager builds them."""
    with patch("transformers.masking_utils.is_tracing", _not_tracing):
        yield
