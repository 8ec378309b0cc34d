"""A decoder's own keys and values at a fixed shape: attention over a whole bucket of slots, masked beyond the live ones.

So transformers treats its own static cache. One step then serves every length of a bucket, at the price of other kernels than
eager's: a step of this kind gives eager's tokens at best.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import Cache

from exactgraph.models.slots import Layer, SlotCache
from exactgraph.refusal import Refused


class FixedLayer(Layer):
    """``slot``: int64 ``(1,)`` on the device, where the new token goes; attention is given all slots."""

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
        """On the device, like that of transformers' static layers: int64, no dimensions."""
        return self.slot[0]

    def get_max_length(self) -> int:
        return int(self.keys.shape[2])

    get_max_cache_shape = get_max_length


def fixed(slots: SlotCache, length: int, slot: torch.Tensor) -> Cache:
    """The bucket of ``slots`` for ``length`` tokens as a cache of fixed shape.

    What lies beyond the ``length - 1`` live tokens is set to zero: a masked NaN would still be one. Raises ``Refused`` for
    layers that slide.
    """
    if slots.window is not None:
        raise Refused("sliding-window", "A window that slides has no fixed shape.")
    bucket = slots.bucket(length)
    for states in (*bucket.keys, *bucket.values):
        states[:, :, length - 1 :].zero_()
    return Cache(layers=[FixedLayer(keys, values, slot) for keys, values in zip(bucket.keys, bucket.values, strict=True)])
