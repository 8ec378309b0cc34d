"""The KV cache by whatever name the installed transformers gives it."""

from __future__ import annotations

import functools
import inspect
from typing import Any

CACHE_NAMES = ("cache", "past_key_values")


def cache_name(model: Any) -> str:
    """The keyword under which ``model.forward`` takes its cache: ``cache`` since 5.2x, ``past_key_values`` before."""
    # The class's own method: a forward that stands in for it on the instance may hide the signature.
    parameters = inspect.signature(type(model).forward).parameters
    # A model that was written for several versions may take either, or whatever comes; generate passes the installed one's.
    given = _generates_name()
    return next((name for name in (given, *CACHE_NAMES) if name in parameters), given)


def cache_of(output: Any) -> Any:
    """The cache in a model output."""
    return next(output[name] for name in CACHE_NAMES if name in output)


@functools.cache
def _generates_name() -> str:
    """The keyword under which ``generate`` of the installed transformers passes the cache."""
    from transformers import GenerationMixin

    parameters = inspect.signature(GenerationMixin.prepare_inputs_for_generation).parameters
    return next(name for name in CACHE_NAMES if name in parameters)
