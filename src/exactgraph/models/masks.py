"""Attention masks under capture.

transformers leaves a mask out where none is needed (one token, no padding), but not while it believes to be traced, and it
counts stream capture as tracing. A mask that eager has not would select another attention kernel, so during capture the
question is answered as in eager. Only calls without padding are captured, so leaving the mask out stays right. Where eager
makes one all the same, for a sliding window that is full, the step makes the same one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any
from unittest.mock import patch

import torch
from torch.overrides import TorchFunctionMode

# Where masks are made; the second is gone from newer versions, or asks no more.
_ROOMS = ("transformers.masking_utils", "transformers.modeling_attn_mask_utils")

# Threads that capture two models would restore what the other one had put in place.
_ONE_AT_A_TIME = threading.RLock()


def _not_tracing(tensor: Any = None) -> bool:
    return False


class _Constants(TorchFunctionMode):
    """``torch.tensor`` of a plain number, without a copy from the host."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if function is torch.tensor and type(args[0]) in (bool, int, float):
            kwargs = {"dtype": torch.tensor(args[0], device="cpu").dtype, **kwargs}
            return torch.full((), args[0], **kwargs)
        return function(*args, **kwargs)


@contextmanager
def masks_as_in_eager() -> Iterator[None]:
    """Build masks in the block as eager builds them."""
    with _ONE_AT_A_TIME, ExitStack() as patches:
        for room in filter(_asks, _ROOMS):
            patches.enter_context(patch(f"{room}.is_tracing", _not_tracing))
        patches.enter_context(_Constants())
        yield


def _asks(room: str) -> bool:
    try:
        return hasattr(import_module(room), "is_tracing")
    except ModuleNotFoundError:
        return False
