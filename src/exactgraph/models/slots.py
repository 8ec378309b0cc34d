"""A KV cache in fixed buffers, written slot by slot.

Eager's cache appends by concatenation, so its tensors move with every token. Here keys and values of position ``p`` go to slot
``p`` of buffers that stay where they are. At length ``n`` attention is given a view of the first ``n`` slots, or of the last
``window`` of them where a layer slides: the same values in the same order as eager's, so whatever lies outside the view is
never read.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from exactgraph.capture.buffers import buffer
from exactgraph.models.cache import cache_name
from exactgraph.refusal import Refused


class SlotLayer(CacheLayerMixin):
    """One layer as the model sees it while it takes a sequence to ``length`` tokens.

    ``keys`` and ``values``: the whole buffers, ``(1, KV heads, capacity, head size)``. ``window``: how many tokens the layer
    attends to, the new one included; None where it attends to all.
    """

    is_sliding = False

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, length: int, window: int | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.keys: torch.Tensor = keys
        self.values: torch.Tensor = values
        self.length = length
        self.window = window
        self.first = 0 if window is None else max(0, length - window)
        # transformers looks for a layer of each kind to make its mask by.
        self.is_sliding = window is not None
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        raise RuntimeError("slots exist before the first update")

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.keys[:, :, self.length - 1 : self.length].copy_(key_states)
        self.values[:, :, self.length - 1 : self.length].copy_(value_states)
        return self.keys[:, :, self.first : self.length], self.values[:, :, self.first : self.length]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length - self.first, self.first

    def get_seq_length(self) -> int:
        return self.length - 1

    def get_max_length(self) -> int:
        return -1 if self.window is None else self.window

    get_max_cache_shape = get_max_length


class SlotCache:
    """The buffers of all layers, for one sequence of at most ``capacity`` tokens.

    ``like``: a filled cache of the kind that ``generate`` makes, whose shapes and kinds of layers are taken; where there is
    none, one is filled with a token. Raises ``Refused`` for layers of other kinds than full and sliding attention.
    """

    def __init__(self, model: Any, capacity: int, like: Any = None) -> None:
        name = type(model).__name__
        cache = _with_one_token(model) if like is None else like
        self._windows = [_window(layer, name) for layer in cache.layers]
        self.capacity = capacity
        self._keys: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []
        for layer in cache.layers:
            for buffers, states in ((self._keys, layer.keys), (self._values, layer.values)):
                if states is None or states.ndim != 4 or (like is None and states.shape[2] != 1):
                    raise Refused("cache-layers", f"{name} keeps something else than keys and values of each token.")
                shape = (states.shape[0], states.shape[1], capacity, states.shape[3])
                buffers.append(buffer(shape, states.dtype, states.device))

    def at(self, length: int) -> Cache:
        """The cache that a model is called with to take the sequence to ``length`` tokens."""
        parts = zip(self._keys, self._values, self._windows, strict=True)
        return Cache(layers=[SlotLayer(keys, values, length, window) for keys, values, window in parts])

    def load(self, cache: Any) -> int:
        """Copy the sequence in ``cache`` into the slots and return its length in tokens."""
        length = int(cache.get_seq_length())
        if length <= self.capacity:
            for layer, keys, values in zip(cache.layers, self._keys, self._values, strict=True):
                # A layer that slides has kept the last tokens alone.
                kept = slice(length - layer.keys.shape[2], length)
                keys[:, :, kept].copy_(layer.keys)
                values[:, :, kept].copy_(layer.values)
        return length

    def take(self, smaller: SlotCache, length: int) -> None:
        """Go on with the sequence of ``length`` tokens that lies in ``smaller``."""
        for ours, theirs in ((self._keys, smaller._keys), (self._values, smaller._values)):
            for larger, slots in zip(ours, theirs, strict=True):
                larger[:, :, :length].copy_(slots[:, :, :length])

    def unload(self, cache: Any, begun: int, length: int) -> None:
        """Append the tokens ``begun`` to ``length`` to ``cache`` by its own means, in memory of its own."""
        if length == begun:
            return
        for layer, keys, values in zip(cache.layers, self._keys, self._values, strict=True):
            layer.update(keys[:, :, begun:length], values[:, :, begun:length])


def _window(layer: Any, name: str) -> int | None:
    """The window of a layer of eager's cache, in tokens; None for full attention."""
    if type(layer) is DynamicLayer:
        return None
    if type(layer) is not DynamicSlidingWindowLayer:
        raise Refused("cache-layers", f"{name} keeps a {type(layer).__name__} in its cache, which is not captured.")
    if layer.sliding_window < 2:
        # transformers then keeps every token and masks none.
        raise Refused("sliding-window", f"{name} attends to a window of {layer.sliding_window} tokens, which is not captured.")
    return int(layer.sliding_window)


def _with_one_token(model: Any) -> Any:
    """The cache as ``generate`` makes it, fed one token, so that each layer shows the shapes and dtypes of keys and values."""
    cache: Any = DynamicCache(config=model.config.get_text_config(decoder=True))
    for layer in cache.layers:
        _window(layer, type(model).__name__)
    token = torch.zeros((1, 1), dtype=torch.int64, device=model.device)
    arguments = {"attention_mask": torch.ones_like(token), "position_ids": token, cache_name(model): cache}
    with torch.inference_mode(False), torch.no_grad():
        model(input_ids=token, use_cache=True, return_dict=True, **arguments)
    return cache
