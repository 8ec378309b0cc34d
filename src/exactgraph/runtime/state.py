"""What captured work rests on, as values to compare: the model's tensors, its modules, and what they decide by.

Writes in place keep a tensor's address and act on the next token; nothing here minds them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

State = dict[str, Any]

_PLAIN = {bool, int, float, str, type(None), torch.dtype, torch.device}
# By these peft decides, beside public attributes, which adapters a layer adds.
_ADAPTERS = ("_active_adapter", "_disable_adapters")
# Of the whole model: read anew by every call, or no part of the forward pass, or put there by the installation.
_OF_CALLS = ("generation_config", "warnings_issued", "name_or_path", "generate", "exactgraph")


def state_of(model: Any) -> State:
    """Everything of ``model`` that a forward pass reads and that a graph may have baked in, by what people call it."""
    modules = list(model.named_modules(remove_duplicate=False))
    kinds = {type(module) for _, module in modules}
    return {
        "weights": [
            (id(tensor), tensor.data_ptr(), type(tensor), tensor.dtype, tensor.device, tensor.shape, tensor.stride())
            for group in (model.parameters(), model.buffers())
            for tensor in group
        ],
        "modules": [(id(module), type(module)) for _, module in modules],
        "code": {kind: kind.forward for kind in kinds},
        "mode": [module.training for _, module in modules],
        "attention": (model.config._attn_implementation, _attention(model.config._attn_implementation)),
        "settings": dict(_settings(model, modules)),
    }


def changed(then: State, now: State) -> str | None:
    """What differs, in words, or None. Only what differs is looked at closely."""
    parts = [name for name in then if then[name] != now[name]]
    if not parts:
        return None
    if parts == ["settings"]:
        before, after = then["settings"], now["settings"]
        parts = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))[:3]
    return ", ".join(parts)


def _attention(name: str | None) -> Any:
    """The function behind the implementation: anybody may register another one under its name."""
    return ALL_ATTENTION_FUNCTIONS.get(name) if name in ALL_ATTENTION_FUNCTIONS else None


def _settings(model: Any, modules: list[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Plain attributes of modules (an epsilon, an activation, the active adapter) and the entries of the configuration."""
    for path, module in modules:
        for name, value in vars(module).items():
            if (name[0] == "_" and name not in _ADAPTERS) or name == "training" or (not path and name in _OF_CALLS):
                continue
            yield f"{path}.{name}", value if type(value) in _PLAIN else _plain(value)
    for name, value in vars(model.config).items():
        # Token IDs steer the loop, not the forward pass, and tokenizers are often fitted to a model late.
        if not name.startswith("_") and not name.endswith("token_id"):
            yield f"config.{name}", _plain(value)


def _plain(value: Any) -> Any:
    if type(value) in _PLAIN:
        return value
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    return id(value)
