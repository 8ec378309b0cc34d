"""Public model shapes that random weights can be made for. Free of torch: specs are parsed against this table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from exactgraph.sources.whisper_shape import WhisperShape


@dataclass(frozen=True)
class LlamaShape:
    """The dimensions of an untied, bias-free ``LlamaForCausalLM``; all sizes are element counts."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    max_positions: int
    rope_theta: float
    rms_norm_eps: float
    bos: int
    eos: tuple[int, ...]
    pad: int

    def config(self) -> dict[str, Any]:
        """The content of ``config.json``."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocab,
            "max_position_embeddings": self.max_positions,
            "rms_norm_eps": self.rms_norm_eps,
            "rope_parameters": {"rope_type": "default", "rope_theta": self.rope_theta},
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": False,
            "bos_token_id": self.bos,
            "eos_token_id": list(self.eos),
            "pad_token_id": self.pad,
            "dtype": "bfloat16",
        }

    def generation_config(self) -> dict[str, Any]:
        """The content of ``generation_config.json``."""
        return {
            "bos_token_id": self.bos,
            "eos_token_id": list(self.eos),
            "pad_token_id": self.pad,
            "do_sample": False,
        }

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every stored tensor, in the order in which they are written."""
        query, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        tensors: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocab, self.hidden)}
        for layer in range(self.layers):
            prefix = f"model.layers.{layer}."
            tensors |= {
                prefix + "input_layernorm.weight": (self.hidden,),
                prefix + "self_attn.q_proj.weight": (query, self.hidden),
                prefix + "self_attn.k_proj.weight": (kv, self.hidden),
                prefix + "self_attn.v_proj.weight": (kv, self.hidden),
                prefix + "self_attn.o_proj.weight": (self.hidden, query),
                prefix + "post_attention_layernorm.weight": (self.hidden,),
                prefix + "mlp.gate_proj.weight": (self.intermediate, self.hidden),
                prefix + "mlp.up_proj.weight": (self.intermediate, self.hidden),
                prefix + "mlp.down_proj.weight": (self.hidden, self.intermediate),
            }
        return tensors | {"model.norm.weight": (self.hidden,), "lm_head.weight": (self.vocab, self.hidden)}


SHAPES: dict[str, LlamaShape | WhisperShape] = {
    # The public shapes of openbmb/MiniCPM5-1B (head_dim is explicit: it is not hidden / heads).
    "minicpm5-1b": LlamaShape(
        hidden=1536,
        intermediate=4608,
        layers=24,
        heads=16,
        kv_heads=2,
        head_dim=128,
        vocab=130560,
        max_positions=131072,
        rope_theta=5e6,
        rms_norm_eps=1e-6,
        bos=0,
        eos=(1, 130073),
        pad=1,
    ),
    # Small enough for a test to decode hundreds of tokens a second on one CPU core; still GQA.
    "tiny-llama": LlamaShape(
        hidden=64,
        intermediate=128,
        layers=2,
        heads=4,
        kv_heads=2,
        head_dim=16,
        vocab=256,
        max_positions=2048,
        rope_theta=1e4,
        rms_norm_eps=1e-6,
        bos=0,
        eos=(1,),
        pad=1,
    ),
    # The public shapes of Whisper small, with positions for long answers, as models of events or notes have them.
    "whisper-small-2560": WhisperShape(
        hidden=768,
        intermediate=3072,
        layers=12,
        heads=12,
        vocab=51865,
        mel_bins=80,
        max_source=1500,
        max_target=2560,
        start=50258,
        end=50257,
    ),
    "tiny-whisper": WhisperShape(
        hidden=64,
        intermediate=128,
        layers=2,
        heads=4,
        vocab=256,
        mel_bins=16,
        max_source=32,
        max_target=128,
        start=0,
        end=1,
    ),
}
