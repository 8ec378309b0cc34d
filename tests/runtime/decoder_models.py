"""Small random decoders of many families, for ``step``."""

from __future__ import annotations

from typing import Any

import torch
import transformers

WINDOW = 16

_SIZES: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 512,
    "max_position_embeddings": 1024,
    "initializer_range": 0.12,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
    # Tied ones answer with the token that they were asked.
    "tie_word_embeddings": False,
}
_GPT2 = {
    "n_embd": 128,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 1024,
    **{name: _SIZES[name] for name in ("vocab_size", "initializer_range", "bos_token_id", "eos_token_id", "pad_token_id")},
    "tie_word_embeddings": False,
}
_MIXED = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "sliding_attention", "full_attention"]}
_EXPERTS = {"num_experts_per_tok": 2}

#: The class without ``ForCausalLM``, and what its configuration changes.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "mistral": ("Mistral", {"sliding_window": None}),
    "mistral-window": ("Mistral", {"sliding_window": WINDOW}),
    "mistral-window-eager": ("Mistral", {"sliding_window": WINDOW, "attn_implementation": "eager"}),
    "qwen2": ("Qwen2", {}),
    "qwen2-window": ("Qwen2", {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}),
    "qwen3": ("Qwen3", {}),
    "gemma2": ("Gemma2", {"sliding_window": WINDOW}),
    "gemma3": ("Gemma3", _MIXED),
    "phi3": ("Phi3", {}),
    "phi3-window": ("Phi3", {"sliding_window": WINDOW}),
    "gpt2": ("GPT2", {}),
    "smollm3": ("SmolLM3", {"num_hidden_layers": 4}),
    "olmo2": ("Olmo2", {}),
    "granite": ("Granite", {}),
    "cohere": ("Cohere", {}),
    "cohere2": ("Cohere2", _MIXED),
    "glm4": ("Glm4", {}),
    "mixtral": ("Mixtral", {"num_local_experts": 4, **_EXPERTS}),
    "qwen3-moe": ("Qwen3Moe", {"num_experts": 4, "moe_intermediate_size": 64, **_EXPERTS}),
}
WINDOWED = [name for name, (_, changes) in FAMILIES.items() if changes.get("sliding_window")]


def make(family: str, device: torch.device, **changes: Any) -> Any:
    name, own = FAMILIES[family]
    return make_of(name, device, **{**own, **changes})


def make_of(name: str, device: torch.device, **changes: Any) -> Any:
    """``{name}ForCausalLM``, by whatever name transformers has it, with seeded weights."""
    config_name, model_name = {
        "GPT2": ("GPT2Config", "GPT2LMHeadModel"),
        "Gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM"),
    }.get(name, (f"{name}Config", f"{name}ForCausalLM"))
    torch.manual_seed(0)
    config = getattr(transformers, config_name)(**{**(_GPT2 if name == "GPT2" else _SIZES), **changes})
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    model = getattr(transformers, model_name)(config).to(device=device, dtype=dtype).eval()
    with torch.no_grad():
        # Norms and biases begin as ones and zeros, and one that was forgotten would not show.
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    model.generation_config.eos_token_id = None
    return model
