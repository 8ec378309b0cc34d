"""What must not have changed since capture. Graphs hold addresses, so a model that moved must not be replayed.

Writes in place keep the address and act on the next token; nothing here minds them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.modules import module as module_room

from exactgraph.environment.flags import flags
from exactgraph.refusal import Refusal

_GLOBAL_HOOKS = ("_global_forward_hooks", "_global_forward_pre_hooks")
_RECORDER = "transformers.utils.output_capturing"
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def hooked(model: Any) -> str | None:
    """The name of the first module with a hook or with a forward function of its own, or None."""
    if any(getattr(module_room, hooks) for hooks in _GLOBAL_HOOKS):
        return "every module"
    for name, module in model.named_modules():
        if "forward" in vars(module) or any(_of_others(getattr(module, hooks, None)) for hooks in _HOOKS):
            return name or type(model).__name__
    return None


def _of_others(hooks: dict[int, Any] | None) -> bool:
    """Whether there are hooks but those that transformers leaves behind once a call asked for hidden states or attentions.

    These do nothing in a call that asks for neither, and one that does runs eager.
    """
    return hooks is not None and any(hook.__module__ != _RECORDER for hook in hooks.values())


class Guard:
    """The state of a model at installation, to be compared before every call."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._state = _state(model)
        self._flags = flags()

    def refusal(self) -> Refusal | None:
        """Why captured work must not be used now, or None."""
        if torch.is_autocast_enabled(self._model.device.type):
            return Refusal("autocast", "Autocast is on; what was captured ran without it.")
        name = hooked(self._model)
        if name is not None:
            return Refusal("hooks", f"Module {name} has a hook or a replaced forward; captured work would not call it.")
        if _state(self._model) != self._state:
            return Refusal("model-changed", "Weights, dtype, device, mode or attention of the model changed since capture.")
        now = flags()
        if now != self._flags:
            changed = ", ".join(name for name, value in now.items() if value != self._flags[name])
            return Refusal("flags-changed", f"Flags of torch that change bits are not what they were at capture: {changed}.")
        return None


def _state(model: Any) -> tuple[Any, ...]:
    tensors = tuple(
        (id(tensor), tensor.data_ptr(), tensor.dtype, tensor.shape)
        for group in (model.parameters(), model.buffers())
        for tensor in group
    )
    modes = tuple(module.training for module in model.modules())
    return tensors, modes, model.config._attn_implementation
