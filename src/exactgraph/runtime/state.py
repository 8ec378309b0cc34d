"""What captured work rests on: the model's modules, their tensors, and what they decide by.

A :class:`Snapshot` is made once and held against the model before every call: at one glance, and module by module where that
does not show everything unchanged. It refers to the modules of that time: an identity tells two things apart only as long as
both are there. Writes in place keep a tensor's address and act on the next token; nothing here minds them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig

from exactgraph.runtime.code import Code
from exactgraph.runtime.glance import Glance, Named
from exactgraph.runtime.values import Values

# By these peft decides, beside public attributes, which adapters a layer adds.
_ADAPTERS = ("_active_adapter", "_disable_adapters")
# Of the whole model: read anew by every call, or no part of the forward pass, or put there by the installation.
_OF_CALLS = ("generation_config", "warnings_issued", "name_or_path", "generate", "exactgraph")
# Looked at apart: the mode, and a forward that stands in for the module's own.
_APART = ("training", "forward")


class Snapshot:
    """Everything of ``model`` that a forward pass reads and that a graph may have baked in; ``named`` are all its modules.

    ``ours``: modules that have a forward of somebody else's for a while.
    """

    def __init__(self, model: nn.Module, named: Named, ours: Iterable[nn.Module] = ()) -> None:
        self._named = named
        # What is installed changes the attributes of the model itself.
        self._glance = Glance(named, {model, *ours}, _of_a_module)
        self._parts = {path: _Part(path, module, root=module is model) for path, module in named}
        found = [vars(module).get("config") for _, module in named]
        configs = {id(config): config for config in found if isinstance(config, PreTrainedConfig)}
        self._configs = [Values(config, _of_configuration) for config in configs.values()]
        self._code = Code(model, {type(module) for _, module in named})

    def suspects(self) -> Named:
        """The modules that may have changed, or got a hook: few where a glance shows that most have not, else all."""
        return self._glance.others if self._glance.same() else self._named

    def changed(self, suspects: Named) -> str | None:
        """What differs, in words, or None. ``suspects``: as :meth:`suspects` just said."""
        for path, _ in suspects:
            what = self._parts[path].changed()
            if what is not None:
                return what
        for config in self._configs:
            name = config.changed()
            if name is not None:
                return f"config.{name}"
        return self._code.changed()

    def tensors(self) -> list[torch.Tensor]:
        """All tensors of the model that was just found unchanged."""
        others = (tensor for path, _ in self._glance.others for tensor in self._parts[path].tensors())
        return [*self._glance.tensors(), *others]


class _Part:
    """One module: its class, mode, children, tensors and plain attributes."""

    __slots__ = ("_children", "_kind", "_module", "_path", "_tensors", "_training", "_values")

    def __init__(self, path: str, module: nn.Module, root: bool) -> None:
        self._path, self._module = path, module
        self._kind, self._training = type(module), module.training
        self._children = list(module._modules.items())
        groups = (module._parameters, module._buffers)
        self._tensors = [[(name, id(tensor), _facts(tensor)) for name, tensor in group.items()] for group in groups]
        self._values = Values(module, _of_the_model if root else _of_a_module)

    def changed(self) -> str | None:
        module = self._module
        own = vars(module)
        children = own["_modules"]
        if type(module) is not self._kind or len(children) != len(self._children):
            return "modules"
        if children and list(children.items()) != self._children:
            return "modules"
        if own["training"] is not self._training:
            return "mode"
        for group, then in zip((own["_parameters"], own["_buffers"]), self._tensors, strict=True):
            if len(group) != len(then):
                return "weights"
            for name, identity, facts in then:
                tensor = group.get(name)
                # Another tensor is not asked for an address, which it may not have.
                if id(tensor) != identity or _facts(tensor) != facts:
                    return "weights"
        what = self._values.changed()
        return None if what is None else f"{self._path}.{what}"

    def tensors(self) -> Iterator[torch.Tensor]:
        for group in (self._module._parameters, self._module._buffers):
            yield from (tensor for tensor in group.values() if tensor is not None)
        yield from self._values.tensors()


def _facts(tensor: torch.Tensor | None) -> tuple[Any, ...] | None:
    """What of a tensor a graph has baked in."""
    if tensor is None:
        return None
    return tensor.data_ptr(), type(tensor), tensor.dtype, tensor.device, tensor.shape, tensor.stride()


def _of_a_module(name: str) -> bool:
    return (name[0] != "_" and name not in _APART) or name in _ADAPTERS


def _of_the_model(name: str) -> bool:
    return _of_a_module(name) and name not in _OF_CALLS


def _of_configuration(name: str) -> bool:
    """Token IDs steer the loop, not the forward pass, and tokenizers are often fitted to a model late."""
    return (name[0] != "_" and not name.endswith("token_id")) or name.endswith("_implementation_internal")
