"""Models that captured work cannot stand in for, whatever the candidate: hooks, training, offloading, quantised weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as module_room

from exactgraph.refusal import Refusal

#: Where a module keeps the hooks that its forward pass calls, or that change how it is called.
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_GLOBAL_HOOKS = ("_global_forward_hooks", "_global_forward_pre_hooks")
_RECORDER = "transformers.utils.output_capturing"
TENSORS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


def unfit(model: Any) -> Refusal | None:
    """Why nothing captured may run in ``model`` as it is, or None."""
    modules = list(model.named_modules())
    refusal = interfered(model, modules, {})
    if refusal is not None:
        return refusal
    for name, module in modules:
        if module.training:
            # Dropout draws random numbers, and capture would draw some that eager does not.
            where = f"Module {name}" if name else "The model"
            return Refusal("training", f"{where} is in training mode: model.eval() changes it.")
    device = model.device
    for kind in (model.named_parameters, model.named_buffers):
        for name, tensor in kind():
            if type(tensor) not in TENSORS:
                return Refusal("tensor-subclass", f"{name} is a {type(tensor).__name__}, not a plain tensor.")
            if tensor.device != device or tensor.is_meta:
                return Refusal("devices", f"{name} is on {tensor.device} and the model on {device}: it has to be on one.")
    return None


def interfered(model: Any, modules: list[tuple[str, nn.Module]], ours: Mapping[nn.Module, Any]) -> Refusal | None:
    """Why captured work would leave out what somebody put into one of ``modules``, or None.

    ``ours`` maps modules to the forwards that may stand in for theirs.
    """
    if getattr(model, "is_quantized", False) or getattr(model, "hf_quantizer", None) is not None:
        return Refusal("quantised", "The weights are quantised; graphs were proved for plain weights only.")
    name = _hooked(model, modules, ours)
    if name is not None:
        # Offloading by a device map works through hooks too.
        return Refusal("hooks", f"Module {name} has a hook or a replaced forward; captured work would not call it.")
    return None


def _hooked(model: Any, modules: list[tuple[str, nn.Module]], ours: Mapping[nn.Module, Any]) -> str | None:
    """The name of the first module with a hook or with a forward function of its own, or None."""
    if any(getattr(module_room, hooks) for hooks in _GLOBAL_HOOKS):
        return "every module"
    for name, module in modules:
        own = vars(module)
        if "forward" in own and own["forward"] is not ours.get(module):
            return name or type(model).__name__
        if module._compiled_call_impl is not None or any(of_others(own[hooks]) for hooks in HOOKS):
            return name or type(model).__name__
    return None


def of_others(hooks: dict[int, Any] | None) -> bool:
    """Whether there are hooks but those that transformers leaves behind once a call asked for hidden states or attentions.

    These do nothing in a call that asks for neither, and one that does runs eager.
    """
    if not hooks:  # by far the most, and a generator costs
        return False
    return any(hook.__module__ != _RECORDER for hook in hooks.values())
