"""From a llama-architecture GGUF file to a Hugging Face model folder.

Weights are dequantised to fp32 and rounded once, to nearest even, to bf16: the models are bf16 natively, and block-quantised
values carry fewer bits than that. Everything else comes from the file's own metadata.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader, ReaderTensor
from gguf.quants import dequantize

from exactgraph.canonical import write_json
from exactgraph.refusal import UserError
from exactgraph.sources.gguf_tokenizer import write_tokenizer
from exactgraph.sources.safetensors_file import write_bf16

_LAYER_PARTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP_PARTS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


class Metadata:
    """The key/value part of a GGUF file; a missing key is an error with a sentence."""

    def __init__(self, reader: GGUFReader) -> None:
        self._reader = reader

    def get(self, key: str) -> Any:
        field = self._reader.get_field(key)
        return None if field is None else field.contents()

    def need(self, key: str) -> Any:
        value = self.get(key)
        if value is None:
            raise UserError(f"The GGUF file lacks the metadata key {key}: it cannot be converted.")
        return value

    def expect(self, key: str, value: str) -> None:
        found = self.need(key)
        if found != value:
            raise UserError(f"The GGUF file has {key} {found!r}; only {value!r} is converted.")


def convert(file: Path, folder: Path) -> str | None:
    """Write config, weights (bf16) and tokenizer of ``file`` into ``folder``; returns the licence that the file states."""
    reader = GGUFReader(file)
    metadata = Metadata(reader)
    metadata.expect("general.architecture", "llama")
    tensors = {_hf_name(tensor.name): tensor for tensor in reader.tensors}
    tied = "lm_head.weight" not in tensors
    config = _config(metadata, tied)
    shapes = _parameters(config)
    _compare(shapes, tensors)
    write_json(folder / "config.json", config)
    ids = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    write_json(folder / "generation_config.json", {**ids, "do_sample": False})
    write_tokenizer(metadata, config["max_position_embeddings"], folder)
    write_bf16(folder / "model.safetensors", shapes, _values(shapes, tensors, config))
    license_name = metadata.get("general.license")
    return None if license_name is None else str(license_name)


def unpermute(rows: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """Undo llama.cpp's order of query and key rows.

    llama.cpp rotates neighbouring pairs, Hugging Face rotates element i of a head with element i + d/2: the converter
    interleaved the two halves of every head, and here they are taken apart again. ``rows``: [heads * d, inputs].
    """
    interleaved = rows.reshape(heads, rows.shape[0] // heads // 2, 2, rows.shape[1])
    return interleaved.swapaxes(1, 2).reshape(rows.shape)


def _config(metadata: Metadata, tied: bool) -> dict[str, Any]:
    def shortest(key: str) -> float:
        # Stored as fp32: the decimal that was meant is the shortest one that gives the same fp32.
        return float(str(np.float32(metadata.need(key))))

    if metadata.get("llama.rope.scaling.type") not in (None, "none"):
        raise UserError("The GGUF file scales its rotary positions; only unscaled ones are converted.")
    hidden, heads = int(metadata.need("llama.embedding_length")), int(metadata.need("llama.attention.head_count"))
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": int(metadata.need("llama.feed_forward_length")),
        "num_hidden_layers": int(metadata.need("llama.block_count")),
        "num_attention_heads": heads,
        "num_key_value_heads": int(metadata.need("llama.attention.head_count_kv")),
        "head_dim": int(metadata.get("llama.rope.dimension_count") or hidden // heads),
        "vocab_size": int(metadata.need("llama.vocab_size")),
        "max_position_embeddings": int(metadata.need("llama.context_length")),
        "rms_norm_eps": shortest("llama.attention.layer_norm_rms_epsilon"),
        "rope_parameters": {"rope_type": "default", "rope_theta": shortest("llama.rope.freq_base")},
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
        "bos_token_id": int(metadata.need("tokenizer.ggml.bos_token_id")),
        "eos_token_id": int(metadata.need("tokenizer.ggml.eos_token_id")),
        "pad_token_id": int(metadata.need("tokenizer.ggml.padding_token_id")),
        "dtype": "bfloat16",
    }


def _hf_name(name: str) -> str:
    if name in _TOP_PARTS:
        return _TOP_PARTS[name]
    match name.split("."):
        case ["blk", layer, part, "weight"] if part in _LAYER_PARTS:
            return f"model.layers.{layer}.{_LAYER_PARTS[part]}.weight"
    raise UserError(f"The GGUF file holds a tensor {name} that has no place in a LlamaForCausalLM: it cannot be converted.")


def _parameters(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Name and shape of every parameter that the Hugging Face model will ask for."""
    from transformers import LlamaConfig, LlamaForCausalLM

    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig.from_dict(config))
    state = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if config["tie_word_embeddings"]:
        del state["lm_head.weight"]
    return state


def _compare(shapes: dict[str, tuple[int, ...]], tensors: dict[str, ReaderTensor]) -> None:
    lacking, extra = sorted(shapes.keys() - tensors.keys()), sorted(tensors.keys() - shapes.keys())
    if lacking or extra:
        raise UserError(
            f"The GGUF file and its model do not fit: lacking {lacking or 'nothing'}, left over {extra or 'nothing'}."
        )
    for name, shape in shapes.items():
        found = tuple(int(size) for size in reversed(tensors[name].shape))
        if found != shape:
            raise UserError(f"The GGUF tensor for {name} has the shape {found}, the model needs {shape}.")


def _values(
    shapes: dict[str, tuple[int, ...]], tensors: dict[str, ReaderTensor], config: dict[str, Any]
) -> Iterator[torch.Tensor]:
    heads = {"self_attn.q_proj.weight": "num_attention_heads", "self_attn.k_proj.weight": "num_key_value_heads"}
    for name, shape in shapes.items():
        values = dequantize(tensors[name].data, tensors[name].tensor_type).reshape(shape)
        if part := next((part for part in heads if name.endswith(part)), None):
            values = unpermute(values, config[heads[part]])
        yield torch.from_numpy(np.array(values, dtype=np.float32)).to(torch.bfloat16)
