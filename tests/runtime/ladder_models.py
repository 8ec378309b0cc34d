"""Small random models of the families that the ladder serves."""

from __future__ import annotations

from typing import Any

import torch
from runtime_models import make_llama, make_model

FAMILIES = ("llama", "llama-tied", "llama-biases", "mistral", "mistral-window", "qwen2", "qwen3", "smollm3")


def make(family: str, device: torch.device) -> Any:
    """A model of three layers, or of four where the family treats every fourth layer in another way."""
    if family == "llama":
        return make_llama(device)
    if family == "llama-tied":
        return make_llama(device, tie_word_embeddings=True)
    if family == "llama-biases":
        return _with_biases(make_llama(device, attention_bias=True, mlp_bias=True))
    if family == "mistral":
        return _make("Mistral", device, sliding_window=None)
    if family == "mistral-window":
        return _make("Mistral", device, sliding_window=16)
    if family == "qwen2":
        return _with_biases(_make("Qwen2", device))
    if family == "qwen3":
        return _make("Qwen3", device)
    return _make("SmolLM3", device, num_hidden_layers=4)


def _make(name: str, device: torch.device, **changes: Any) -> Any:
    head = 32 if name in ("Qwen2", "SmolLM3") else 64
    return make_model(name, device, **{"hidden_size": 128, "intermediate_size": 320, "head_dim": head, **changes})


def _with_biases(model: Any) -> Any:
    """Fresh biases are zero, and one that was forgotten would not show."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(".bias"):
                parameter.normal_()
    return model
