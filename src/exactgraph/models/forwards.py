"""Forward functions that stand in for those of modules while a block runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn


@contextmanager
def attached(forwards: Mapping[nn.Module, Callable[..., Any]]) -> Iterator[None]:
    """Each module of ``forwards`` runs the function given for it in the block, and its own again after it."""
    try:
        for module, forward in forwards.items():
            module.forward = forward
        yield
    finally:
        for module in forwards:
            vars(module).pop("forward", None)
