"""Keys and values of cross-attention in fixed buffers.

They are computed once for each input, from the encoder's output, by eager's own prefill. Every call copies those of its input
over those of the one before, so a replay never attends to an input that is gone.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import Cache, DynamicLayer

from exactgraph.models.slots import Layer
from exactgraph.refusal import Refused


class CrossLayer(Layer):
    """One layer, filled. ``keys`` and ``values``: ``(rows, heads, encoder positions, head size)``."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        raise RuntimeError("the cross-attention of a decode step is filled before the step")

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0

    def get_seq_length(self) -> int:
        return int(self.keys.shape[2])

    def get_max_length(self) -> int:
        return -1

    get_max_cache_shape = get_max_length


class CrossCache:
    """Buffers for inputs of one shape. ``like``: the cross-attention cache of a prefilled call, whose shapes, dtypes and
    strides they get. Raises ``Refused`` for layers that are no plain keys and values.
    """

    def __init__(self, like: Any) -> None:
        self._layers = [_layer(layer) for layer in like.layers]

    def view(self) -> Cache:
        """The cache that a model is called with."""
        return Cache(layers=list(self._layers))

    def load(self, cache: Any) -> None:
        """Take over the keys and values of the input that ``cache`` was filled from."""
        for ours, layer in zip(self._layers, cache.layers, strict=True):
            ours.keys.copy_(layer.keys)
            ours.values.copy_(layer.values)


def shape_of(cache: Any) -> tuple[tuple[int, ...], ...]:
    """What two prefilled cross-attention caches must have in common to share buffers."""
    return tuple((*layer.keys.shape, *layer.keys.stride()) for layer in cache.layers)


def _layer(layer: Any) -> CrossLayer:
    if type(layer) is not DynamicLayer or layer.keys is None or layer.values is None or layer.keys.ndim != 4:
        raise Refused("cache-layers", f"A {type(layer).__name__} of cross-attention is not captured.")
    with torch.inference_mode(False):
        # Kernels are chosen by strides too.
        keys, values = torch.empty_like(layer.keys), torch.empty_like(layer.values)
    if keys.stride() != layer.keys.stride() or values.stride() != layer.values.stride():
        raise Refused("cache-layers", "Keys or values of cross-attention that overlap in memory are not captured.")
    return CrossLayer(keys, values)
