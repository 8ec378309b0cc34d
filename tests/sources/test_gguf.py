"""GGUF conversion on a tiny file whose right answer is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter, quants
from safetensors.torch import load_file
from tiny_gguf import HEADS, HIDDEN, KV_HEADS, gguf_tensors, write_gguf
from transformers import AutoModelForCausalLM, AutoTokenizer

from exactgraph.canonical import read_json
from exactgraph.refusal import UserError
from exactgraph.sources.gguf import convert, unpermute


def llama_cpp_permute(rows: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """Row by row what llama.cpp's converter does: element i of a head's first half goes to 2i, of its second to 2i + 1."""
    out = np.empty_like(rows)
    size = len(rows) // heads
    for head in range(heads):
        for i in range(size // 2):
            out[head * size + 2 * i] = rows[head * size + i]
            out[head * size + 2 * i + 1] = rows[head * size + size // 2 + i]
    return out


def converted(tmp_path: Path, tensors: dict[str, np.ndarray[Any, Any]], **options: str) -> Path:
    write_gguf(tmp_path / "m.gguf", tensors, **options)
    (tmp_path / "m").mkdir()
    assert convert(tmp_path / "m.gguf", tmp_path / "m") == "apache-2.0"
    return tmp_path / "m"


def test_unpermute_undoes_llama_cpp() -> None:
    rows = np.arange(48.0).reshape(24, 2)
    assert (unpermute(llama_cpp_permute(rows, 3), 3) == rows).all()
    assert not (llama_cpp_permute(rows, 3) == rows).all()


def test_weights_and_config(tmp_path: Path) -> None:
    original = gguf_tensors()
    stored = dict(original)
    stored["blk.0.attn_q.weight"] = llama_cpp_permute(original["blk.0.attn_q.weight"], HEADS)
    stored["blk.0.attn_k.weight"] = llama_cpp_permute(original["blk.0.attn_k.weight"], KV_HEADS)
    folder = converted(tmp_path, stored)
    state = load_file(folder / "model.safetensors")
    assert len(state) == len(original)
    for gguf_name, name in (
        ("token_embd", "embed_tokens"),
        ("blk.0.attn_q", "layers.0.self_attn.q_proj"),
        ("blk.0.attn_k", "layers.0.self_attn.k_proj"),
        ("blk.0.ffn_down", "layers.0.mlp.down_proj"),
        ("blk.0.ffn_norm", "layers.0.post_attention_layernorm"),
    ):
        assert torch.equal(state[f"model.{name}.weight"].float(), torch.from_numpy(original[f"{gguf_name}.weight"])), name
    model, info = AutoModelForCausalLM.from_pretrained(folder, dtype="auto", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert model.dtype == torch.bfloat16
    assert model.lm_head.weight is model.model.embed_tokens.weight
    config = read_json(folder / "config.json")
    assert (config["rms_norm_eps"], config["rope_parameters"]["rope_theta"], config["head_dim"]) == (
        1e-5,
        1e5,
        HIDDEN // HEADS,
    )
    assert read_json(folder / "generation_config.json") == {
        "bos_token_id": 1,
        "do_sample": False,
        "eos_token_id": 2,
        "pad_token_id": 2,
    }


def test_rounding_is_to_nearest_even(tmp_path: Path) -> None:
    tensors = gguf_tensors()
    # bf16 has 7 fraction bits: 1 + 1/256 and 1 + 3/256 are ties.
    tensors["output_norm.weight"][:3] = [1 + 1 / 256, 1 + 3 / 256, 1 + 1.01 / 256]
    state = load_file(converted(tmp_path, tensors) / "model.safetensors")
    assert state["model.norm.weight"][:3].tolist() == [1.0, 1 + 4 / 256, 1 + 2 / 256]


def test_quantised_tensor(tmp_path: Path) -> None:
    tensors = gguf_tensors()
    kind = GGMLQuantizationType.Q4_1
    values = quants.dequantize(quants.quantize(tensors["blk.0.ffn_up.weight"], kind), kind)
    assert np.abs(values - tensors["blk.0.ffn_up.weight"]).max() < 0.1
    write = GGUFWriter.add_tensor

    def quantised(self: GGUFWriter, name: str, data: np.ndarray[Any, Any]) -> None:
        if name == "blk.0.ffn_up.weight":
            write(self, name, quants.quantize(data, kind), raw_dtype=kind)
        else:
            write(self, name, data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GGUFWriter, "add_tensor", quantised)
        folder = converted(tmp_path, tensors)
    state = load_file(folder / "model.safetensors")
    assert torch.equal(state["model.layers.0.mlp.up_proj.weight"], torch.from_numpy(values).to(torch.bfloat16))


def test_tokenizer(tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(converted(tmp_path, gguf_tensors()))
    assert tokenizer.tokenize("2024") == ["2", "0", "2", "4"]
    assert tokenizer.tokenize("abc") == ["ab", "c"]
    assert tokenizer.encode("<|im_start|>a<|im_end|>") == [1, 13, 2]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2)
    assert tokenizer.apply_chat_template([{"role": "user", "content": "ab"}], tokenize=False) == "user:ab"


def test_nothing_is_left_over_or_lacking(tmp_path: Path) -> None:
    lacking, extra, odd, wrong = gguf_tensors(), gguf_tensors(), gguf_tensors(), gguf_tensors()
    del lacking["blk.0.ffn_up.weight"]
    extra["blk.1.ffn_up.weight"] = extra["blk.0.ffn_up.weight"]
    odd["rope_freqs.weight"] = np.ones(4, np.float32)
    wrong["output_norm.weight"] = np.ones(4, np.float32)
    for tensors, says in (
        (lacking, r"lacking \['model\.layers\.0\.mlp\.up_proj\.weight'\]"),
        (extra, r"left over \['model\.layers\.1\.mlp\.up_proj\.weight'\]"),
        (odd, "rope_freqs.weight that has no place"),
        (wrong, r"model\.norm\.weight has the shape \(4,\)"),
    ):
        write_gguf(tmp_path / "m.gguf", tensors)
        with pytest.raises(UserError, match=says):
            convert(tmp_path / "m.gguf", tmp_path)


def test_an_unknown_pre_tokenizer_is_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", gguf_tensors(), pre="llama-bpe")
    with pytest.raises(UserError, match=r"tokenizer\.ggml\.pre 'llama-bpe'; only 'smollm'"):
        convert(tmp_path / "m.gguf", tmp_path)
