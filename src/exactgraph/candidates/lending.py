"""Whether what lies in a graph's buffers may be handed to the cache and to attention."""

from __future__ import annotations

import functools
from typing import Any

from torch import nn

from exactgraph.candidates.one_token import Forwards
from exactgraph.models.cache import CACHE_NAMES

_OWN_ATTENTION = ("eager", "sdpa")
_OWN_CACHES = "transformers.cache_utils"


class Lending:
    """Whether Q, K and V may be handed out as they lie in the graph's buffers.

    V reaches the cache as it is, and K does where there is no rotary embedding. transformers' own caches and attention
    functions copy or read at once; a user's may keep what they get, and so get copies.
    """

    def __init__(self, decoder: nn.Module, attention: str | None) -> None:
        self._attention_reads = attention in _OWN_ATTENTION
        self.lends = False
        self.forwards: Forwards = {decoder: self._watching(decoder.forward)}

    def _watching(self, forward: Any) -> Any:
        @functools.wraps(forward)
        def watching(*args: Any, **kwargs: Any) -> Any:
            cache = next((kwargs[name] for name in CACHE_NAMES if kwargs.get(name) is not None), None)
            # Whoever passes the cache by position hides it from here.
            self.lends = self._attention_reads and len(args) <= 1 and _copies(cache)
            return forward(*args, **kwargs)

        return watching


def _copies(cache: Any) -> bool:
    """Whether ``cache`` is known to copy what it is given: none at all, or one of transformers' with its own layers."""
    if cache is None:
        return True
    parts = [type(cache), *map(type, getattr(cache, "layers", ()))]
    to_come = getattr(cache, "layer_class_to_replicate", None)
    if to_come is not None:
        parts.append(to_come)
    return all(getattr(part, "__module__", None) == _OWN_CACHES for part in parts)
