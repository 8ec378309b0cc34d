"""Seeded weights in public shapes, for work without a hub.

Every step is exact integer or correctly rounded arithmetic (raw bits, integer sums, one fp32 product, one fp32 sum, one
rounding to bf16), so one seed gives the same bytes on every platform and with every version of torch and numpy. Torch's own
normal distribution would not: its bits depend on the CPU's vector width.

Scales are chosen so that greedy traces depend on context and do not fall into short cycles, as they do with a plain N(0, 0.02)
start: embeddings as large as what the layers add, attention scores of standard deviation near 2 (neither uniform nor one-hot),
logits of unit order from an untied head.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from exactgraph.canonical import write_json
from exactgraph.sources.prompts import seeded_prompts
from exactgraph.sources.random_bits import stream
from exactgraph.sources.safetensors_file import write_bf16
from exactgraph.sources.shapes import SHAPES

_CHUNK = 1 << 22  # elements in one step: 32 MB of random bits
_EVEN = np.uint64(0x0000FFFF0000FFFF)  # the even 16-bit quarters of 64 bits
_SUM_MEAN = 2 * 0xFFFF  # of four uniform 16-bit integers
_SUM_STD = math.sqrt((2**32 - 1) / 3)

# Standard deviation of each projection's output for an input of unit RMS.
_GAINS = {
    "q_proj": 1.5,
    "k_proj": 1.5,
    "v_proj": 1.0,
    "o_proj": 1.0,
    "gate_proj": 1.0,
    "up_proj": 1.0,
    "down_proj": 1.0,
    "lm_head": 2.0,
}
_EMBEDDING_STD = 1.0
_NORM_STD = 0.1


def write_model(shape_name: str, seed: int, folder: Path) -> None:
    """Write ``config.json``, ``generation_config.json``, ``model.safetensors`` (bf16) and ``prompts.json``."""
    shape = SHAPES[shape_name]
    tokens = {"bos_token_id": shape.bos, "eos_token_id": list(shape.eos), "pad_token_id": shape.pad}
    write_json(folder / "config.json", shape.config())
    write_json(folder / "generation_config.json", {**tokens, "do_sample": False})
    special = {shape.bos, *shape.eos, shape.pad}
    write_json(folder / "prompts.json", seeded_prompts(shape.vocab, special, shape.bos, seed))
    tensors = shape.tensors()
    write_bf16(
        folder / "model.safetensors", tensors, (chunk for name in tensors for chunk in _values(name, tensors[name], seed))
    )


def _values(name: str, shape: tuple[int, ...], seed: int) -> Iterator[torch.Tensor]:
    """The tensor's values in row-major order, as flat bfloat16 chunks."""
    mean, std = _distribution(name, shape)
    bits = stream(seed, name)
    scale = np.float32(std / _SUM_STD)
    for start in range(0, math.prod(shape), _CHUNK):
        count = min(_CHUNK, math.prod(shape) - start)
        raw = bits.random_raw(count)
        pairs = ((raw & _EVEN) + ((raw >> np.uint64(16)) & _EVEN)).astype("<u8", copy=False).view("<u4").reshape(count, 2)
        # A sum of four uniform integers is near enough to normal and, unlike a normal variate, exact everywhere.
        sums = (pairs[:, 0] + pairs[:, 1]).astype(np.int32) - np.int32(_SUM_MEAN)
        values = sums.astype(np.float32) * scale + np.float32(mean)
        yield torch.from_numpy(values).to(torch.bfloat16)


def _distribution(name: str, shape: tuple[int, ...]) -> tuple[float, float]:
    """Mean and standard deviation of the tensor's values."""
    if "norm" in name:
        return 1.0, _NORM_STD
    if "embed_tokens" in name:
        return 0.0, _EMBEDDING_STD
    kind = name.removesuffix(".weight").rsplit(".", 1)[-1]
    return 0.0, _GAINS[kind] / math.sqrt(shape[1])
