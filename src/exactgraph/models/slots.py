"""A KV cache in fixed buffers, written slot by slot, that grows in buckets.

Eager's cache appends by concatenation, so its tensors move with every token. Here keys and values of position ``p`` go to slot
``p`` of buffers that stay where they are. What lies beyond the live prefix is never read and may hold anything.

Buffers come in buckets of 128 times a power of two tokens. A sequence that fills its bucket is copied into the next one and
goes on there; the smaller bucket stays, because graphs hold its address. So all buckets together hold less than twice the
largest, and none is made before a sequence needs it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from exactgraph.capture.buffers import buffer
from exactgraph.models.cache import cache_name
from exactgraph.refusal import Refused

SMALLEST = 128


def bucket_of(length: int) -> int:
    """The capacity, in tokens, of the smallest bucket that holds ``length``."""
    return SMALLEST << max(0, (length - 1) // SMALLEST).bit_length()


def bucket_spans(reach: int) -> Iterator[tuple[int, int]]:
    """The lengths ``(first, last)`` that live in each bucket, ascending up to ``reach`` tokens."""
    first, last = 1, SMALLEST
    while first <= reach:
        yield first, min(last, reach)
        first, last = last + 1, 2 * last


class Layer(CacheLayerMixin):
    """One layer of a bucket as a model sees it. ``keys`` and ``values``: ``(batch, KV heads, capacity, head size)``."""

    is_sliding = False

    def __init__(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.keys: torch.Tensor = keys
        self.values: torch.Tensor = values
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        raise RuntimeError("slots exist before the first update")


class SlotLayer(Layer):
    """A layer while a sequence is taken to ``length`` tokens, a number that the host knows.

    Attention is given a view of the first ``length`` slots, or of the last ``window`` of them where the layer slides: the same
    values in the same order as eager's. ``window``: how many tokens the layer attends to, the new one included; None for all.
    """

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, length: int, window: int | None) -> None:
        super().__init__(keys, values)
        self.length = length
        self.window = window
        self.first = 0 if window is None else max(0, length - window)
        # transformers looks for a layer of each kind to make its mask by.
        self.is_sliding = window is not None

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


class ClassLayer(Layer):
    """A layer while a sequence is taken to any length of a class, which is known on the device alone.

    ``slot``: int64 ``(1,)`` on the device, where the new token goes. Attention is given the first ``longest`` slots and has to
    find out by itself how many of them are live (:mod:`exactgraph.models.device_length`).
    """

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, longest: int, slot: torch.Tensor, sliding: bool) -> None:
        super().__init__(keys, values)
        self.longest = longest
        self.slot = slot
        self.is_sliding = sliding

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.keys.index_copy_(2, self.slot, key_states)
        self.values.index_copy_(2, self.slot, value_states)
        return self.keys[:, :, : self.longest], self.values[:, :, : self.longest]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.longest, 0

    def get_seq_length(self) -> int:
        return self.longest - 1

    def get_max_length(self) -> int:
        return -1

    get_max_cache_shape = get_max_length


class PrefillLayer(DynamicLayer):
    """Eager's layer while a prompt passes through: what it would keep goes straight to ``keys_slots`` and ``values_slots``.

    Attention of the prompt gets what eager's layer gives it, which lives no longer than that.
    """

    def __init__(self, keys_slots: torch.Tensor, values_slots: torch.Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._slots = keys_slots, values_slots
        self._length = 0

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if self._length:
            self.keys, self.values = self.states()
        keys, values = super().update(key_states, value_states, *args, **kwargs)
        self._length = keys.shape[2]
        for slots, states in zip(self._slots, (keys, values), strict=True):
            slots[:, :, : self._length].copy_(states)
        self.lazy_initialization(key_states, value_states)
        return keys, values

    def get_seq_length(self) -> int:
        return self._length

    def states(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values so far, as views of the slots."""
        keys, values = (slots[:, :, : self._length] for slots in self._slots)
        return keys, values


@dataclass(frozen=True)
class Bucket:
    """Keys and values of all layers, ``capacity`` tokens each."""

    capacity: int
    keys: list[torch.Tensor]
    values: list[torch.Tensor]

    def rehearse(self, length: int, generator: torch.Generator) -> None:
        """Random states in the first ``length`` slots and NaN beyond, which shows in whatever reads it.

        ``generator``: one of its own, so that a program's random numbers stay what they are.
        """
        for states in (*self.keys, *self.values):
            states.normal_(generator=generator)[:, :, length:] = torch.nan


class SlotCache:
    """The buckets of ``batch`` sequences of equal length.

    ``window``: the shortest that a layer slides by, in tokens, or None. ``logits``: what the model answers a token
    with, for its dtype and number of columns. Raises ``Refused`` for a model whose cache has layers of other kinds than full
    and sliding attention.
    """

    def __init__(self, model: Any, batch: int = 1) -> None:
        name = type(model).__name__
        # As generate makes it.
        cache: Any = DynamicCache(config=model.config.get_text_config(decoder=True))
        self._windows = [_window(layer, name) for layer in cache.layers]
        self.logits = _feed_one(model, cache)
        self._lay_out(cache, batch, name)

    @classmethod
    def like(cls, cache: Any, name: str) -> SlotCache:
        """Slots for sequences of the kind and number that ``cache`` was filled with; ``logits`` is not known of them."""
        slots = cls.__new__(cls)
        slots._windows = [_window(layer, name) for layer in cache.layers]
        slots._lay_out(cache, cache.layers[0].keys.shape[0], name)
        return slots

    def _lay_out(self, cache: Any, batch: int, name: str) -> None:
        self.window = min((window for window in self._windows if window is not None), default=None)
        self._batch = batch
        # Keys and values of each layer: (KV heads, head size), dtype.
        self._like: list[tuple[torch.Tensor, torch.Tensor]] = []
        for layer, window in zip(cache.layers, self._windows, strict=True):
            length = cache.get_seq_length()
            kept = length if window is None else min(length, window - 1)
            for states in (layer.keys, layer.values):
                if states is None or states.ndim != 4 or states.shape[2] != kept:
                    raise Refused("cache-layers", f"{name} keeps something else than keys and values of each token.")
            # Not the tensors themselves: they may be a caller's, and long.
            self._like.append((layer.keys[:1, :, :1].clone(), layer.values[:1, :, :1].clone()))
        self._buckets: dict[int, Bucket] = {}
        self._current: Bucket | None = None

    def bucket(self, length: int) -> Bucket:
        """The bucket in which sequences of ``length`` tokens live, made when it is first asked for.

        Raises ``Refused`` (``cache-out-of-memory``) where the device has no room for it.
        """
        capacity = bucket_of(length)
        if capacity not in self._buckets:
            try:
                keys = [self._buffer(states, capacity) for states, _ in self._like]
                values = [self._buffer(states, capacity) for _, states in self._like]
            except torch.cuda.OutOfMemoryError as error:
                sentence = f"The KV cache of {capacity} tokens does not fit into GPU memory: {error}"
                raise Refused("cache-out-of-memory", sentence) from error
            self._buckets[capacity] = Bucket(capacity, keys, values)
        return self._buckets[capacity]

    def at(self, length: int) -> Cache:
        """The cache that a model is called with to take the sequence to ``length`` tokens."""
        bucket = self.bucket(length)
        parts = zip(bucket.keys, bucket.values, self._windows, strict=True)
        return Cache(layers=[SlotLayer(keys, values, length, window) for keys, values, window in parts])

    def up_to(self, longest: int, slot: torch.Tensor) -> Cache:
        """The cache that a model is called with to write ``slot``, at any length up to ``longest``.

        No layer's window may be full there.
        """
        bucket = self.bucket(longest)
        parts = zip(bucket.keys, bucket.values, self._windows, strict=True)
        return Cache(layers=[ClassLayer(keys, values, longest, slot, window is not None) for keys, values, window in parts])

    def receive(self, cache: Any, tokens: int) -> None:
        """Have a prompt of ``tokens`` tokens written into the slots by its own prefill. ``cache``: empty, and nobody else's.

        Layers that slide keep to their own ways. Raises ``Refused`` where there is no room.
        """
        if self.window is None:
            bucket = self.bucket(tokens)
            layers = [PrefillLayer(keys, values) for keys, values in zip(bucket.keys, bucket.values, strict=True)]
            cache.layers[:] = layers

    def load(self, cache: Any) -> int:
        """Copy the sequence in ``cache`` into the slots, where it is not there yet, and return its length in tokens."""
        length = int(cache.get_seq_length())
        bucket = self._current = self.bucket(length)
        if isinstance(cache.layers[0], PrefillLayer):
            return length
        for layer, keys, values in zip(cache.layers, bucket.keys, bucket.values, strict=True):
            # A layer that slides has kept the last tokens alone.
            kept = slice(length - layer.keys.shape[2], length)
            keys[:, :, kept].copy_(layer.keys)
            values[:, :, kept].copy_(layer.values)
        return length

    def grow(self, length: int) -> None:
        """Move the sequence to the bucket for ``length`` tokens, where it is in a smaller one."""
        before, bucket = self._current, self.bucket(length)
        if before is not None and before.capacity < bucket.capacity:
            for old, new in zip((*before.keys, *before.values), (*bucket.keys, *bucket.values), strict=True):
                new[:, :, : before.capacity].copy_(old)
            self._current = bucket

    def unload(self, cache: Any, begun: int, length: int) -> None:
        """Append the tokens ``begun`` to ``length`` to ``cache`` by its own means, in memory of its own."""
        for index, layer in enumerate(cache.layers):
            if isinstance(layer, PrefillLayer):
                plain = DynamicLayer()
                plain.update(*layer.states())
                cache.layers[index] = plain
        if length == begun:
            return
        bucket = self._current
        assert bucket is not None
        for layer, keys, values in zip(cache.layers, bucket.keys, bucket.values, strict=True):
            layer.update(keys[:, :, begun:length], values[:, :, begun:length])

    def _buffer(self, states: torch.Tensor, capacity: int) -> torch.Tensor:
        return buffer((self._batch, states.shape[1], capacity, states.shape[3]), states.dtype, states.device)


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


def _feed_one(model: Any, cache: Any) -> torch.Tensor:
    """Feed one token in eager, so that each layer of ``cache`` shows the shapes and dtypes of its keys and values.

    Returns the logits, ``(1, vocabulary)``.
    """
    token = torch.zeros((1, 1), dtype=torch.int64, device=model.device)
    arguments = {"attention_mask": torch.ones_like(token), "position_ids": token, cache_name(model): cache}
    with torch.inference_mode(False), torch.no_grad():
        logits: torch.Tensor = model(input_ids=token, use_cache=True, return_dict=True, **arguments).logits[:, -1]
    return logits
