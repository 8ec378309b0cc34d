"""Attention of one new token at a KV length that is known on the device alone.

Eager bakes the length into its call, so a graph of it serves one length. FlashAttention-2 also takes lengths from the device's
memory (``seqused_k``), and its arithmetic then depends on the host's upper bound in one way only: into how many parts the keys
are split. Where that number is the one that eager's call comes to, the bits are the same; which lengths share a bound is found
by comparing bits (:mod:`exactgraph.candidates.length_classes`).

Eager's kernel splits the keys of one token for any number of heads. The kernel with lengths splits only where several query
heads share a KV head: it folds them into rows of one tile. So with a KV head for each query head every query row is given
twice: the tile is as large as before, the number of blocks that the split is computed from is the same, rows of a tile do not
touch each other, and the second row is dropped. (``seqlenq_ngroups_swapped`` and ``set_params_splitkv`` in PyTorch's
``aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp``.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from exactgraph.refusal import Refused

#: What flash attention computes in.
_DTYPES = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Shape:
    """What a call of attention looks like apart from its length. ``scale`` None stands for ``head_size ** -0.5``."""

    batch: int
    heads: int
    kv_heads: int
    head_size: int
    dtype: torch.dtype
    scale: float | None


class DeviceLength:
    """``used``: int32 ``(batch,)`` on the device, how many slots are live, the new token's included."""

    def __init__(self, batch: int, device: torch.device) -> None:
        with torch.inference_mode(False):
            self.used = torch.zeros(batch, dtype=torch.int32, device=device)
            self._rows = torch.arange(batch + 1, dtype=torch.int32, device=device)
            self._starts: dict[int, torch.Tensor] = {}

    def attention(self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float | None) -> torch.Tensor:
        """What eager's flash attention gives for the first ``used`` slots.

        ``query``: ``(batch, heads, 1, head size)``. ``keys``, ``values``: ``(batch, KV heads, slots, head size)``, views of
        the cache's buffers. Returns ``(batch, heads, 1, head size)``.
        """
        if query.device.type == "cpu":
            emulated: torch.Tensor = attention_of_live(query, keys, values, self.used, scale)
            return emulated
        batch, heads, _, size = query.shape
        rows = query.transpose(1, 2).reshape(batch, heads, size)
        doubled = heads == keys.shape[1]
        if doubled:
            rows = rows[:, :, None].expand(batch, heads, 2, size).reshape(batch, 2 * heads, size)
        output = torch.ops.aten._flash_attention_forward(
            rows,
            _flat(keys),
            _flat(values),
            self._rows,
            self._start_of(keys),
            1,
            keys.shape[2],
            0.0,
            False,
            False,
            scale=size**-0.5 if scale is None else scale,
            seqused_k=self.used,
        )[0]
        # Eager's output lies in memory as (batch, 1, heads, head size) too.
        kept: torch.Tensor = output[:, ::2] if doubled else output
        return kept[:, None].transpose(1, 2)

    def _start_of(self, keys: torch.Tensor) -> torch.Tensor:
        """Where each sequence begins in :func:`_flat`, int32 ``(batch + 1,)``."""
        apart = keys.stride(0) // keys.stride(2)
        if apart not in self._starts:
            # Made at a warm-up: a graph must not hold what its own capture allocated for a moment.
            self._starts[apart] = self._rows * apart
        return self._starts[apart]


@torch.library.custom_op("exactgraph::attention_of_live", mutates_args=(), device_types="cpu")
def attention_of_live(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, used: torch.Tensor, scale: float | None
) -> torch.Tensor:
    """The same without a GPU: one operation, which reads ``used`` when it runs, as the kernel on a GPU does."""
    live = int(used[0])
    shared = query.shape[1] > keys.shape[1]
    return scaled_dot_product_attention(query, keys[:, :, :live], values[:, :, :live], scale=scale, enable_gqa=shared)


def _flat(states: torch.Tensor) -> torch.Tensor:
    """Keys or values of all sequences as rows of one matrix a head, ``(rows, KV heads, head size)``, without copying.

    Sequence ``b`` begins ``b * KV heads * capacity`` rows down; what lies between belongs to other heads and is never reached.
    """
    batch, kv_heads, slots, size = states.shape
    rows = (batch - 1) * (states.stride(0) // states.stride(2)) + slots
    return states.as_strided((rows, kv_heads, size), (states.stride(2), states.stride(1), 1))


class AttendByLength(TorchFunctionMode):
    """In the block, attention over the keys and values of ``layers`` runs at the device's length; over those of ``besides``,
    whose length is always the same, it runs as in eager.

    Raises ``Refused`` (``attention-call``) where a model attends to them in a way that does not allow it: through a mask, with
    keys that were copied, in fp32 on a GPU, or not by ``scaled_dot_product_attention`` at all. ``shapes`` collects what was
    called.
    """

    def __init__(self, length: DeviceLength, layers: Iterable[Any], model: str, besides: Iterable[Any] = ()) -> None:
        super().__init__()
        self._besides = {layer.keys.data_ptr() for layer in besides}
        self._length = length
        self._model = model
        self._layers = {layer.keys.data_ptr(): layer for layer in layers}
        self._waiting = dict(self._layers)
        self.shapes: set[Shape] = set()

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if function is not scaled_dot_product_attention or args[1].data_ptr() in self._besides:
            return function(*args, **kwargs)
        return self._attend(*args, **kwargs)

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        if self._waiting and error[0] is None:
            raise self._refused("does not hand the keys of its cache to scaled_dot_product_attention")

    def _attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        layer = self._waiting.pop(key.data_ptr(), None)
        if layer is None or key.shape[2] != layer.longest or value.data_ptr() != layer.values.data_ptr():
            raise self._refused("attends to copies of its keys")
        if attn_mask is not None or is_causal or dropout_p:
            raise self._refused("attends through a mask or with dropout")
        batch, heads, tokens, size = query.shape
        if tokens != 1 or value.shape != key.shape or size % 8 or size > 256:
            raise self._refused(f"has heads of {size} and {value.shape[3]}, or more than one token")
        if query.is_cuda and query.dtype not in _DTYPES:
            raise self._refused(f"computes in {str(query.dtype).removeprefix('torch.')}, which flash attention does not")
        self.shapes.add(Shape(batch, heads, key.shape[1], size, query.dtype, scale))
        return self._length.attention(query, key, value, scale)

    def _refused(self, what: str) -> Refused:
        return Refused("attention-call", f"{self._model} {what}, so its KV length cannot be read on the device.")
