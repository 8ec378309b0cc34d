"""The weights of a Whisper in CTranslate2's format under transformers' names.

CTranslate2 keeps Q, K and V of an attention as one matrix; it is cut apart here, and the bias of K, which Whisper does not
have, is held to be the zeros that the converter filled in. Weights keep the dtype in which they are stored.
"""

from __future__ import annotations

import re

import numpy as np
import torch

from exactgraph.refusal import UserError
from exactgraph.sources.ctranslate2 import Array, Stored

_SAME = {"weight": "weight", "bias": "bias"}
_NORM = {"gamma": "weight", "beta": "bias"}
# Each part of a layer in CTranslate2's names: its Hugging Face names (several where it is cut apart) and its tensors.
_SELF_ATTENTION = {
    "self_attention/layer_norm": (("self_attn_layer_norm",), _NORM),
    "self_attention/linear_0": (("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), _SAME),
    "self_attention/linear_1": (("self_attn.out_proj",), _SAME),
}
_CROSS_ATTENTION = {
    "attention/layer_norm": (("encoder_attn_layer_norm",), _NORM),
    "attention/linear_0": (("encoder_attn.q_proj",), _SAME),
    "attention/linear_1": (("encoder_attn.k_proj", "encoder_attn.v_proj"), _SAME),
    "attention/linear_2": (("encoder_attn.out_proj",), _SAME),
}
_MLP = {
    "ffn/layer_norm": (("final_layer_norm",), _NORM),
    "ffn/linear_0": (("fc1",), _SAME),
    "ffn/linear_1": (("fc2",), _SAME),
}
_LAYERS = {"encoder": _SELF_ATTENTION | _MLP, "decoder": _SELF_ATTENTION | _CROSS_ATTENTION | _MLP}
_ENDS = {
    "encoder/conv1/weight": "encoder.conv1.weight",
    "encoder/conv1/bias": "encoder.conv1.bias",
    "encoder/conv2/weight": "encoder.conv2.weight",
    "encoder/conv2/bias": "encoder.conv2.bias",
    "encoder/position_encodings/encodings": "encoder.embed_positions.weight",
    "encoder/layer_norm/gamma": "encoder.layer_norm.weight",
    "encoder/layer_norm/beta": "encoder.layer_norm.bias",
    "decoder/embeddings/weight": "decoder.embed_tokens.weight",
    "decoder/position_encodings/encodings": "decoder.embed_positions.weight",
    "decoder/layer_norm/gamma": "decoder.layer_norm.weight",
    "decoder/layer_norm/beta": "decoder.layer_norm.bias",
}
# Settings of the architecture. GELU is the number 3 of CTranslate2's activations.
_FIXED = {
    "decoder/activation": 3,
    "decoder/alibi": 0,
    "decoder/alignment_heads": 1,
    "decoder/alignment_layer": -1,
    "decoder/pre_norm": 1,
    "decoder/scale_embeddings": 0,
    "decoder/start_from_zero_embedding": 0,
}
_HEADS = ("encoder/num_heads", "decoder/num_heads")


def weights(stored: Stored) -> dict[str, torch.Tensor]:
    """The parameters of a ``WhisperForConditionalGeneration`` by its names. Raises ``UserError`` for what has no place."""
    waiting = dict(stored.variables)
    for name, value in _FIXED.items():
        if int(_take(waiting, name)) != value:
            raise UserError(f"The model has {name} {int(stored.variables[name])}; a Whisper has {value}.")
    for name in _HEADS:
        _take(waiting, name)
    tensors = {f"model.{name}": _tensor(_take(waiting, theirs)) for theirs, name in _ENDS.items()}
    for side, parts in _LAYERS.items():
        for layer in range(layers(stored, side)):
            for theirs, (names, kinds) in parts.items():
                for kind, ours in kinds.items():
                    values = _take(waiting, f"{side}/layer_{layer}/{theirs}/{kind}")
                    tensors |= _cut(values, ours, [f"model.{side}.layers.{layer}.{name}" for name in names])
    if waiting:
        raise UserError(f"The model holds {len(waiting)} variables that have no place in a Whisper, such as {min(waiting)}.")
    return tensors


def layers(stored: Stored, side: str) -> int:
    """How many layers the ``encoder`` or the ``decoder`` has."""
    found = [re.match(rf"{side}/layer_(\d+)/", name) for name in stored.variables]
    return len({match[1] for match in found if match})


def _take(waiting: dict[str, Array], name: str) -> Array:
    if name not in waiting:
        raise UserError(f"The model lacks the variable {name}: it cannot be converted.")
    return waiting.pop(name)


def _cut(values: Array, kind: str, names: list[str]) -> dict[str, torch.Tensor]:
    """Rows ``(len(names) * d, inputs)``, or a bias of as many elements, as one tensor for each name."""
    if values.shape[0] % len(names):
        raise UserError(f"{names[0]} is part of {values.shape[0]} rows, which are not {len(names)} equal parts.")
    tensors: dict[str, torch.Tensor] = {}
    for name, part in zip(names, np.split(values, len(names)), strict=True):
        if kind == "bias" and name.endswith("k_proj"):
            if np.any(part):
                raise UserError(f"{name} has a bias that is not zero, and Whisper has none there: it cannot be converted.")
            continue
        tensors[f"{name}.{kind}"] = _tensor(part)
    return tensors


def _tensor(values: Array) -> torch.Tensor:
    if values.dtype not in (np.float16, np.float32):
        raise UserError(f"The model holds weights as {values.dtype}: quantised weights are not converted.")
    return torch.from_numpy(values.copy())
