"""Writes a tiny Whisper as CTranslate2 does, with what its package has beside it. The vocabulary is the English one."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np

HIDDEN, LAYERS, HEADS, MELS, SOURCES, TARGETS, VOCABULARY = 8, 2, 2, 4, 6, 16, 51864
Array = np.ndarray[Any, Any]
_NUMBERS = {"float32": 0, "int8": 1, "int16": 2, "int32": 3, "float16": 4}
ALIASES = {"decoder/projection/weight": "decoder/embeddings/weight"}


def variables() -> dict[str, Array]:
    """All variables of the model, weights in fp16, different in every element."""
    found: dict[str, Array] = {
        "decoder/activation": np.int8(3),
        "decoder/alibi": np.int8(0),
        "decoder/alignment_heads": np.int16(1),
        "decoder/alignment_layer": np.int16(-1),
        "decoder/pre_norm": np.int8(1),
        "decoder/scale_embeddings": np.int8(0),
        "decoder/start_from_zero_embedding": np.int8(0),
        "encoder/num_heads": np.int16(HEADS),
        "decoder/num_heads": np.int16(HEADS),
    }
    found = {name: np.asarray(value) for name, value in found.items()}
    random = np.random.default_rng(0)

    def add(name: str, *shape: int) -> None:
        found[name] = random.normal(0, 0.3, shape).astype(np.float16)

    def linear(name: str, outputs: int, inputs: int) -> None:
        add(f"{name}/weight", outputs, inputs)
        add(f"{name}/bias", outputs)

    def norm(name: str) -> None:
        add(f"{name}/gamma", HIDDEN)
        add(f"{name}/beta", HIDDEN)

    add("encoder/conv1/weight", HIDDEN, MELS, 3)
    add("encoder/conv1/bias", HIDDEN)
    add("encoder/conv2/weight", HIDDEN, HIDDEN, 3)
    add("encoder/conv2/bias", HIDDEN)
    add("encoder/position_encodings/encodings", SOURCES, HIDDEN)
    add("decoder/embeddings/weight", VOCABULARY, HIDDEN)
    add("decoder/position_encodings/encodings", TARGETS, HIDDEN)
    for side in ("encoder", "decoder"):
        norm(f"{side}/layer_norm")
        for layer in range(LAYERS):
            prefix = f"{side}/layer_{layer}"
            norm(f"{prefix}/self_attention/layer_norm")
            linear(f"{prefix}/self_attention/linear_0", 3 * HIDDEN, HIDDEN)
            found[f"{prefix}/self_attention/linear_0/bias"][HIDDEN : 2 * HIDDEN] = 0
            linear(f"{prefix}/self_attention/linear_1", HIDDEN, HIDDEN)
            if side == "decoder":
                norm(f"{prefix}/attention/layer_norm")
                linear(f"{prefix}/attention/linear_0", HIDDEN, HIDDEN)
                linear(f"{prefix}/attention/linear_1", 2 * HIDDEN, HIDDEN)
                found[f"{prefix}/attention/linear_1/bias"][:HIDDEN] = 0
                linear(f"{prefix}/attention/linear_2", HIDDEN, HIDDEN)
            norm(f"{prefix}/ffn/layer_norm")
            linear(f"{prefix}/ffn/linear_0", 4 * HIDDEN, HIDDEN)
            linear(f"{prefix}/ffn/linear_1", HIDDEN, 4 * HIDDEN)
    return found


def write(file: Path, found: dict[str, Array], spec: str = "WhisperSpec", version: int = 6) -> None:
    """``model.bin`` at ``file``, and ``config.json`` and ``tokenizer.json`` beside it."""
    parts = [struct.pack("<I", version), _text(spec), struct.pack("<II", 3, len(found))]
    for name, values in found.items():
        data = values.tobytes()
        parts += [_text(name), struct.pack(f"<B{values.ndim}I", values.ndim, *values.shape)]
        parts += [struct.pack("<BI", _NUMBERS[values.dtype.name], len(data)), data]
    parts.append(struct.pack("<I", len(ALIASES)))
    parts += [_text(text) for pair in ALIASES.items() for text in pair]
    file.write_bytes(b"".join(parts))
    ids = {"alignment_heads": [[1, 0]], "suppress_ids": [1, 2], "suppress_ids_begin": [220, 50256], "lang_ids": []}
    (file.parent / "config.json").write_text(json.dumps(ids))
    special = {"<|endoftext|>": 50256, "<|startoftranscript|>": 50257, "<|notimestamps|>": 50362}
    tokens = [{"content": text, "id": index} for text, index in special.items()]
    (file.parent / "tokenizer.json").write_text(json.dumps({"added_tokens": tokens}))


def _text(text: str) -> bytes:
    data = text.encode() + b"\0"
    return struct.pack("<H", len(data)) + data
