"""What must not have changed since capture. Graphs hold addresses, so a model that moved must not be replayed.

Writes in place keep the address and act on the next token; nothing here minds them.
"""

from __future__ import annotations

from typing import Any

import torch

from exactgraph.refusal import Refusal

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def hooked(model: Any) -> str | None:
    """The name of the first module with a hook or with a forward function of its own, or None."""
    for name, module in model.named_modules():
        if any(getattr(module, hooks, None) for hooks in _HOOKS) or "forward" in vars(module):
            return name or type(model).__name__
    return None


class Guard:
    """The state of a model at installation, to be compared before every call."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._state = _state(model)

    def refusal(self) -> Refusal | None:
        """Why captured work must not be used now, or None."""
        if torch.is_autocast_enabled(self._model.device.type):
            return Refusal("autocast", "Autocast is on; what was captured ran without it.")
        name = hooked(self._model)
        if name is not None:
            return Refusal("hooks", f"Module {name} has a hook or a replaced forward; captured work would not call it.")
        if _state(self._model) != self._state:
            return Refusal("model-changed", "Weights, dtype, device, mode or attention of the model changed since capture.")
        return None


def _state(model: Any) -> tuple[Any, ...]:
    tensors = tuple(
        (id(tensor), tensor.data_ptr(), tensor.dtype, tensor.shape)
        for group in (model.parameters(), model.buffers())
        for tensor in group
    )
    return tensors, model.training, model.config._attn_implementation
