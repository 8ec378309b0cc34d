"""A decoder's own keys and values while the length of a sequence is known on the device alone.

Decoders that make positions of the number of cached tokens get it as a tensor, as from transformers' own static layers.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import Cache

from exactgraph.models.slots import ClassLayer, Layer, SlotCache
from exactgraph.refusal import Refused


class PlacedLayer(ClassLayer):
    """A layer that attention reads the length of on the device, and the decoder too."""

    def get_seq_length(self) -> Any:
        """int64, no dimensions, on the device."""
        return self.slot[0]


class FixedLayer(Layer):
    """A layer of which attention is given all slots, masked beyond the live ones: other kernels than eager's.

    ``slot``: int64 ``(1,)`` on the device, where the new token goes.
    """

    # transformers then makes a causal mask, from the slot, instead of leaving it out for a single token.
    is_compileable = True

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, slot: torch.Tensor) -> None:
        super().__init__(keys, values)
        self.slot = slot

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.keys.index_copy_(2, self.slot, key_states)
        self.values.index_copy_(2, self.slot, value_states)
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return int(self.keys.shape[2]), 0

    def get_seq_length(self) -> Any:
        """int64, no dimensions, on the device."""
        return self.slot[0]

    def get_max_length(self) -> int:
        return int(self.keys.shape[2])

    get_max_cache_shape = get_max_length


def placed(slots: SlotCache, longest: int, slot: torch.Tensor) -> Cache:
    """The bucket of ``slots`` for any length up to ``longest``, where the new token goes to ``slot``, int64 ``(1,)``.

    Raises ``Refused`` for layers that slide.
    """
    _check(slots)
    bucket = slots.bucket(longest)
    parts = zip(bucket.keys, bucket.values, strict=True)
    return Cache(layers=[PlacedLayer(keys, values, longest, slot, sliding=False) for keys, values in parts])


def fixed(slots: SlotCache, length: int, slot: torch.Tensor) -> Cache:
    """The bucket of ``slots`` for ``length`` tokens as a cache of fixed shape.

    What lies beyond the ``length - 1`` live tokens is set to zero: a masked NaN would still be one. Raises ``Refused`` for
    layers that slide.
    """
    _check(slots)
    bucket = slots.bucket(length)
    for states in (*bucket.keys, *bucket.values):
        states[:, :, length - 1 :].zero_()
    return Cache(layers=[FixedLayer(keys, values, slot) for keys, values in zip(bucket.keys, bucket.values, strict=True)])


def _check(slots: SlotCache) -> None:
    if slots.window is not None:
        raise Refused("sliding-window", "A window that slides is captured for each length alone.")
