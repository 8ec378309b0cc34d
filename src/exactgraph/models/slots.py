"""A KV cache in fixed buffers, written slot by slot.

Eager's cache appends by concatenation, so its tensors move with every token. Here keys and values of position ``p`` go to slot
``p`` of buffers that stay where they are. At length ``n`` attention is given a view of the first ``n`` slots: the same
values in the same order as eager's, so whatever lies beyond the view is never read.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from exactgraph.capture.buffers import buffer
from exactgraph.refusal import Refused


class SlotLayer(CacheLayerMixin):
    """One layer as the model sees it while it takes a sequence to ``length`` tokens.

    ``keys`` and ``values``: the whole buffers, ``(1, KV heads, capacity, head size)``.
    """

    is_sliding = False

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, length: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.keys: torch.Tensor = keys
        self.values: torch.Tensor = values
        self.length = length
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        raise RuntimeError("slots exist before the first update")

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.keys[:, :, self.length - 1 : self.length].copy_(key_states)
        self.values[:, :, self.length - 1 : self.length].copy_(value_states)
        return self.keys[:, :, : self.length], self.values[:, :, : self.length]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length, 0

    def get_seq_length(self) -> int:
        return self.length - 1

    def get_max_length(self) -> int:
        return -1

    get_max_cache_shape = get_max_length


class SlotCache:
    """The buffers of all layers, for one sequence of at most ``capacity`` tokens."""

    def __init__(self, model: Any, capacity: int) -> None:
        config = model.config.get_text_config(decoder=True)
        layer_types = set(getattr(config, "layer_types", None) or ["full_attention"])
        if layer_types != {"full_attention"}:
            raise Refused("layers-not-full-attention", f"{type(model).__name__} has layers of other kinds: {layer_types}.")
        if getattr(config, "sliding_window", None) is not None:
            raise Refused("sliding-window", f"{type(model).__name__} attends through a sliding window.")
        self.capacity = capacity
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = (1, config.num_key_value_heads, capacity, size)
        layers = range(config.num_hidden_layers)
        self._keys = [buffer(shape, model.dtype, model.device) for _ in layers]
        self._values = [buffer(shape, model.dtype, model.device) for _ in layers]

    def at(self, length: int) -> Cache:
        """The cache that a model is called with to take the sequence to ``length`` tokens."""
        return Cache(layers=[SlotLayer(keys, values, length) for keys, values in zip(self._keys, self._values, strict=True)])

    def load(self, cache: Any) -> int:
        """Copy the sequence in ``cache`` into the slots and return its length in tokens."""
        length = int(cache.get_seq_length())
        if length <= self.capacity:
            for layer, keys, values in zip(cache.layers, self._keys, self._values, strict=True):
                keys[:, :, :length].copy_(layer.keys)
                values[:, :, :length].copy_(layer.values)
        return length

    def unload(self, cache: Any, begun: int, length: int) -> None:
        """Append the tokens ``begun`` to ``length`` to ``cache``, as eager's concatenation would have."""
        if length == begun:
            return
        for layer, keys, values in zip(cache.layers, self._keys, self._values, strict=True):
            layer.keys = torch.cat([layer.keys, keys[:, :, begun:length]], dim=-2)
            layer.values = torch.cat([layer.values, values[:, :, begun:length]], dim=-2)
