"""Small random models and prompts for the runtime's tests."""

from __future__ import annotations

from typing import Any

import torch
import transformers

_SIZES: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 640,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 512,
    "max_position_embeddings": 1024,
    # Wide weights: the answers of a model with small ones fall into a short cycle.
    "initializer_range": 0.12,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
}


def make_model(name: str, device: torch.device, **changes: Any) -> Any:
    """``{name}ForCausalLM`` of transformers with seeded weights."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**{**_SIZES, **changes})
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    model = getattr(transformers, f"{name}ForCausalLM")(config).to(device=device, dtype=dtype).eval()
    model.generation_config.eos_token_id = None
    return model


def make_llama(device: torch.device, **changes: Any) -> Any:
    return make_model("Llama", device, **changes)


def prompt(device: torch.device, tokens: int, seed: int = 0) -> torch.Tensor:
    """Token IDs of shape ``(1, tokens)``."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(2, 512, (1, tokens), generator=generator).to(device)
