"""A GGUF file of one tiny Llama layer, for tests: seeded tensors, and a vocabulary that shows a lost digit splitter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter

HIDDEN, HEADS, KV_HEADS, INTERMEDIATE = 32, 4, 2, 64


def gguf_tensors() -> dict[str, np.ndarray[Any, Any]]:
    """One layer of fp32 tensors under their GGUF names; values are multiples of 1/64, exact in bf16."""
    kv = HIDDEN // HEADS * KV_HEADS
    shapes = {
        "token_embd.weight": (len(TOKENS), HIDDEN),
        "output_norm.weight": (HIDDEN,),
        "blk.0.attn_norm.weight": (HIDDEN,),
        "blk.0.attn_q.weight": (HIDDEN, HIDDEN),
        "blk.0.attn_k.weight": (kv, HIDDEN),
        "blk.0.attn_v.weight": (kv, HIDDEN),
        "blk.0.attn_output.weight": (HIDDEN, HIDDEN),
        "blk.0.ffn_norm.weight": (HIDDEN,),
        "blk.0.ffn_gate.weight": (INTERMEDIATE, HIDDEN),
        "blk.0.ffn_up.weight": (INTERMEDIATE, HIDDEN),
        "blk.0.ffn_down.weight": (HIDDEN, INTERMEDIATE),
    }
    draw = np.random.default_rng(0)
    return {name: draw.integers(-64, 64, shape).astype(np.float32) / 64 for name, shape in shapes.items()}


# Merging "20" and "24" shows a lost digit splitter: without it "2024" would be two tokens.
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *"0123456789abcd", "Ġ", "20", "24", "ab"]
MERGES = ["2 0", "2 4", "a b"]


def write_gguf(path: Path, tensors: dict[str, np.ndarray[Any, Any]], pre: str = "smollm") -> None:
    writer = GGUFWriter(path, "llama")
    writer.add_license("apache-2.0")
    writer.add_block_count(1)
    writer.add_context_length(512)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INTERMEDIATE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(1e5)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3, 3] + [1] * (len(TOKENS) - 3))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template("{% for m in messages %}{{ m['role'] + ':' + m['content'] }}{% endfor %}")
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
