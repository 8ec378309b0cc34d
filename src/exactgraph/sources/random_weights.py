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

import torch

from exactgraph.canonical import write_json
from exactgraph.sources.prompts import seeded_prompts
from exactgraph.sources.random_bits import normal
from exactgraph.sources.safetensors_file import write_bf16
from exactgraph.sources.shapes import SHAPES
from exactgraph.sources.whisper_shape import WhisperShape
from exactgraph.sources.windows import write_seeded

# Standard deviation of each projection's output for an input of unit RMS, by the end of its name; the first that fits counts.
_GAINS = {
    "q_proj": 1.5,
    "k_proj": 1.5,
    "v_proj": 1.0,
    "o_proj": 1.0,
    "gate_proj": 1.0,
    "up_proj": 1.0,
    "down_proj": 1.0,
    "lm_head": 2.0,
    # Whisper's names. What GELU passes on has a mean, and what is heard is nearly the same in every step: both are halved, or
    # their sum over the layers would make one token the likeliest of all.
    "encoder_attn.out_proj": 0.5,
    "out_proj": 1.0,
    "fc1": 1.0,
    "fc2": 0.5,
    "conv1": 1.0,
    "conv2": 1.0,
    "proj_out": 2.0,
}
_EMBEDDING_STD = 1.0
_NORM_STD = 0.1
_BIAS_STD = 0.1


def write_model(shape_name: str, seed: int, folder: Path) -> None:
    """Write ``config.json``, ``generation_config.json``, ``model.safetensors`` (bf16), ``prompts.json`` or ``windows.npz``."""
    shape = SHAPES[shape_name]
    write_json(folder / "config.json", shape.config())
    write_json(folder / "generation_config.json", shape.generation_config())
    if isinstance(shape, WhisperShape):
        write_seeded(folder, shape, seed)
    else:
        special = {shape.bos, *shape.eos, shape.pad}
        write_json(folder / "prompts.json", seeded_prompts(shape.vocab, special, shape.bos, seed))
    tensors = shape.tensors()
    write_bf16(
        folder / "model.safetensors", tensors, (chunk for name in tensors for chunk in _values(name, tensors[name], seed))
    )


def _values(name: str, shape: tuple[int, ...], seed: int) -> Iterator[torch.Tensor]:
    """The tensor's values in row-major order, as flat bfloat16 chunks."""
    mean, std = _distribution(name, shape)
    for values in normal(shape, mean, std, seed, name):
        yield torch.from_numpy(values).to(torch.bfloat16)


def _distribution(name: str, shape: tuple[int, ...]) -> tuple[float, float]:
    """Mean and standard deviation of the tensor's values."""
    if name.endswith(".bias"):
        return 0.0, _BIAS_STD
    if "norm" in name:
        return 1.0, _NORM_STD
    if "embed_tokens" in name or "embed_positions" in name:
        return 0.0, _EMBEDDING_STD
    gain = next(gain for end, gain in _GAINS.items() if name.endswith(f".{end}.weight") or name == f"{end}.weight")
    # A projection's row is what it adds up for one output; a convolution's is channels times width.
    return 0.0, gain / math.sqrt(math.prod(shape[1:]))
