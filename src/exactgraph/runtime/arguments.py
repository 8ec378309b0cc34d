"""Arguments of ``generate`` that a candidate does not serve, seen before anything runs."""

from __future__ import annotations

from typing import Any

from exactgraph.models.cache import CACHE_NAMES
from exactgraph.refusal import Refusal

# Arguments of generate that reach the loop in a form it does not know, or not at all.
_NOT_IN_OUR_LOOP = (
    "assistant_model",
    "custom_generate",
    "synced_gpus",
    "tokenizer",
    "inputs_embeds",
    "position_ids",
    "logits_to_keep",
)


def loop_refusal(arguments: dict[str, Any]) -> Refusal | None:
    """Why a call with these keyword arguments does not run in our decode loop, or None."""
    for name in _NOT_IN_OUR_LOOP:
        if arguments.get(name) is not None:
            return Refusal("argument", f"generate({name}=…) runs eager.")
    return None


def compile_refusal(model: Any, arguments: dict[str, Any]) -> Refusal | None:
    """Why a call with these keyword arguments must not meet stand-in forwards, or None.

    With a cache of fixed size transformers compiles the forward pass by itself, and would compile the stand-ins into it.
    """
    config = arguments.get("generation_config") or model.generation_config
    kind = arguments.get("cache_implementation") or config.cache_implementation
    caches = [arguments[name] for name in CACHE_NAMES if arguments.get(name) is not None]
    if kind not in (None, "dynamic") or any(getattr(cache, "is_compileable", False) for cache in caches):
        return Refusal("compiles", "A cache of fixed size makes transformers compile the model, which runs eager.")
    return None
