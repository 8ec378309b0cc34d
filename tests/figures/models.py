"""The model that the runtime's figures are taken on, and a confirmed installation of it without a receipt's timings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

from exactgraph.candidates.base import Context
from exactgraph.candidates.registry import candidate
from exactgraph.capture import capturer_for
from exactgraph.runtime.handle import Handle, Plan
from exactgraph.runtime.session import Session

LAYERS = 24


def attention_of(device: torch.device) -> str:
    """A backend that reproduces itself on ``device``."""
    return "flash" if device.type == "cuda" else "default"


def deep_llama(device: torch.device, layers: int = LAYERS) -> Any:
    """A seeded Llama with the shape of a model of half a billion parameters on a GPU, and of a tiny one on a CPU."""
    torch.manual_seed(0)
    large = device.type == "cuda"
    config = transformers.LlamaConfig(
        hidden_size=1024 if large else 64,
        intermediate_size=2816 if large else 128,
        num_hidden_layers=layers,
        num_attention_heads=16 if large else 4,
        num_key_value_heads=4 if large else 2,
        vocab_size=32000 if large else 128,
        max_position_embeddings=2048,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
    )
    dtype = torch.bfloat16 if large else torch.float32
    model = transformers.LlamaForCausalLM(config).to(device=device, dtype=dtype).eval()
    model.generation_config.eos_token_id = None
    return model


def prompt(model: Any, tokens: int = 16) -> torch.Tensor:
    """Token IDs ``(1, tokens)``."""
    return (torch.arange(tokens, device=model.device) % 97 + 2)[None]


def optimised(model: Any, name: str, budget: int, confirmed: int) -> Handle:
    """``model`` as ``exactgraph.optimize`` leaves it; ``exactgraph.restore`` takes it back."""
    context = Context(capturer_for(model.device), budget, min(24, confirmed), confirmed)
    chosen, attention = candidate(name), attention_of(model.device)
    decisions = chosen.plan(model, context)
    session = Session(model, chosen, decisions, context, attention)
    plan = Plan(name, chosen.claims, attention, decisions)
    model.exactgraph = Handle(Path("receipt.json"), "deep-llama", "rehearsal", plan, session, context.capturer, 0.0)
    return model.exactgraph
