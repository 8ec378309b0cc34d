"""Which KV lengths one graph can serve, found on the device by comparing bits.

A graph for lengths up to ``last`` calls flash attention with ``last`` as the host's bound and the length on the device. The
bound decides into how many parts the keys are split, by a rule that depends on heads, head size, dtype, batch, the number of
SMs and PyTorch's version. So nothing is assumed: each length of a class is tried, with NaN beyond the live keys, and a class
that has one that differs from eager's own call is halved until it has none.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import torch
from torch.nn.functional import scaled_dot_product_attention

from exactgraph.models.device_length import DeviceLength, Shape
from exactgraph.models.slots import SMALLEST, bucket_spans

Classes = list[tuple[int, int]]
#: Lengths of a class that a new process tries again.
_TRIED = 16
_BITS = {torch.bfloat16: torch.int16, torch.float16: torch.int16}


def find_classes(shapes: Iterable[Shape], reach: int, device: torch.device) -> Classes:
    """Classes ``(first, last)`` of KV lengths, ascending, that together cover what can be covered up to ``reach``.

    Each ends at 128 times a power of two or, where such a class has lengths that differ, at some multiple of 128. Runs under
    the attention backend that eager is pinned to.
    """
    shapes = list(shapes)
    return [found for first, last in bucket_spans(reach) for found in _halved(shapes, first, last, device)]


def holds(shapes: Iterable[Shape], first: int, last: int, device: torch.device) -> bool:
    """Whether a class that was found earlier holds in this process too, under the present backend; tries some lengths."""
    lengths = range(first, last + 1, max(1, (last - first) // _TRIED))
    return all(_equal(shape, lengths, last, device) for shape in shapes)


def _halved(shapes: list[Shape], first: int, last: int, device: torch.device) -> Classes:
    # A few lengths first: where a library plans anew for each length, all of them take minutes, and most differences show.
    if holds(shapes, first, last, device) and all(_equal(shape, range(first, last + 1), last, device) for shape in shapes):
        return [(first, last)]
    middle = (first + last) // 2 // SMALLEST * SMALLEST
    if not first <= middle < last:
        return []
    return _halved(shapes, first, middle, device) + _halved(shapes, middle + 1, last, device)


def _equal(shape: Shape, lengths: range, last: int, device: torch.device) -> bool:
    """Whether attention at each of ``lengths``, ascending, has eager's bits under the bound ``last``."""
    if device.type == "cpu":
        return True  # the emulation calls eager's attention on the live keys
    return shape.dtype in _BITS and _same_bits(shape, lengths, last, device, _backends())


def _backends() -> tuple[bool, ...]:
    """Which backends eager may choose from."""
    cuda = torch.backends.cuda
    asked = (cuda.flash_sdp_enabled, cuda.mem_efficient_sdp_enabled, cuda.math_sdp_enabled, cuda.cudnn_sdp_enabled)
    return tuple(enabled() for enabled in asked)  # type: ignore[no-untyped-call]


@cache
def _same_bits(shape: Shape, lengths: range, last: int, device: torch.device, backends: tuple[bool, ...]) -> bool:
    """The comparison, once a process for all lanes and models of one shape; ``backends`` tells pins apart."""
    generator = torch.Generator(device).manual_seed(last)

    def random(heads: int, tokens: int) -> torch.Tensor:
        size = (shape.batch, heads, tokens, shape.head_size)
        return torch.randn(size, generator=generator, dtype=shape.dtype, device=device)

    with torch.inference_mode(False), torch.no_grad():
        query, keys, values = random(shape.heads, 1), random(shape.kv_heads, last), random(shape.kv_heads, last)
        length = DeviceLength(shape.batch, device)
        differ = torch.zeros((), dtype=torch.bool, device=device)
        shared = shape.heads > shape.kv_heads
        for live in reversed(lengths):
            for states in (keys, values):
                states[:, :, live : live + lengths.step] = torch.nan
            length.used.fill_(live)
            ours = length.attention(query, keys, values, shape.scale)
            eager = scaled_dot_product_attention(
                query, keys[:, :, :live], values[:, :, :live], scale=shape.scale, enable_gqa=shared
            )
            differ |= (ours.contiguous().view(_BITS[shape.dtype]) != eager.contiguous().view(_BITS[shape.dtype])).any()
    return not bool(differ)
