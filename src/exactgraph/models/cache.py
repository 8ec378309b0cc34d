"""The KV cache by whatever name the installed transformers gives it."""

from __future__ import annotations

import inspect
from typing import Any

CACHE_NAMES = ("cache", "past_key_values")


def cache_name(model: Any) -> str:
    """The keyword under which ``model.forward`` takes its cache: ``cache`` since 5.2x, ``past_key_values`` before."""
    # The class's own method: a forward that stands in for it on the instance may hide the signature.
    parameters = inspect.signature(type(model).forward).parameters
    return next((name for name in CACHE_NAMES if name in parameters), CACHE_NAMES[-1])


def cache_of(output: Any) -> Any:
    """The cache in a model output."""
    return next(output[name] for name in CACHE_NAMES if name in output)
