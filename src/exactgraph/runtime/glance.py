"""Many modules held against what they were, at one glance.

A walk through the modules of 24 layers takes most of a millisecond, and nearly always finds nothing. That nothing changed
shows faster where every object is the very one that it was: lists of them are compared without a line of Python for each. The
glance says no more than that. Whatever else it meets is for the walk to judge, which knows what is harmless and names what is
not.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from itertools import chain
from operator import attrgetter, call, is_, itemgetter, methodcaller
from typing import Any

import torch
from torch import nn

from exactgraph.runtime.fitness import HOOKS, of_others

Named = list[tuple[str, nn.Module]]
Dictionaries = list[dict[str, Any]]

_TENSORS = ("_parameters", "_buffers")
_values = methodcaller("values")
# The type first: another class of tensors may do what it likes when it is asked for the rest.
_FACTS: tuple[Callable[[Any], Any], ...] = (
    type,
    torch.Tensor.data_ptr,
    attrgetter("dtype", "device", "shape"),
    torch.Tensor.stride,
)


class Glance:
    """``others``: those of ``named`` that a glance says nothing about. They are ``apart``, or have tensors or containers as
    plain attributes, which nobody but the user may keep alive. ``counts``: by which plain attributes modules are told apart.
    """

    def __init__(self, named: Named, apart: Container[nn.Module], counts: Callable[[str], bool]) -> None:
        self.others = [(name, module) for name, module in named if module in apart or _keeps(module, counts)]
        others = {name for name, _ in self.others}
        self._modules = [module for name, module in named if name not in others]
        self._kinds = [type(module) for module in self._modules]
        own = [vars(module) for module in self._modules]
        self._attributes = _names(own)
        fixed = ("training", "_modules", *_TENSORS, *HOOKS)
        self._getters = [itemgetter(*fixed, *(name for name in names if counts(name))) for names in own]
        self._objects = [*chain.from_iterable(map(call, self._getters, own))]
        inner = [attributes[name] for attributes in own for name in ("_modules", *_TENSORS)]
        self._empty = [found for found in inner if not found]
        self._hooks = [attributes[name] for attributes in own for name in HOOKS]
        self._children = [attributes["_modules"] for attributes in own if attributes["_modules"]]
        self._submodules = _names(self._children), [*chain.from_iterable(map(_values, self._children))]
        self._groups = [attributes[name] for attributes in own for name in _TENSORS if attributes[name]]
        tensors = self.tensors()
        # Not the tensors themselves: what the user lets go of is to be gone. Who has the identity of one that is gone, and all
        # its facts, is as good.
        self._tensors = _names(self._groups), [*map(id, tensors)]
        self._facts = [[*map(fact, tensors)] for fact in _FACTS]

    def same(self) -> bool:
        """Whether the walk would find no module but ``others`` changed, hooked or compiled."""
        own = [*map(vars, self._modules)]
        return (
            # Never by equality: a one is no True, and what is compared may have ways of its own.
            all(map(is_, map(type, self._modules), self._kinds))
            and all(kind._compiled_call_impl is None for kind in {*self._kinds})
            and _names(own) == self._attributes
            and all(map(is_, chain.from_iterable(map(call, self._getters, own)), self._objects))
            # So the dictionaries in the modules are those that were there.
            and not any(self._empty)
            and not any(map(of_others, filter(None, self._hooks)))
            and _names(self._children) == self._submodules[0]
            and all(map(is_, chain.from_iterable(map(_values, self._children)), self._submodules[1]))
            and self._same_tensors()
        )

    def tensors(self) -> list[torch.Tensor]:
        """Parameters and buffers of all modules but ``others``."""
        return [tensor for tensor in chain.from_iterable(map(_values, self._groups)) if tensor is not None]

    def _same_tensors(self) -> bool:
        tensors = self.tensors()
        return (_names(self._groups), [*map(id, tensors)]) == self._tensors and all(
            [*map(fact, tensors)] == then for fact, then in zip(_FACTS, self._facts, strict=True)
        )


def _names(dictionaries: Dictionaries) -> tuple[list[int], list[str]]:
    return [*map(len, dictionaries)], [*chain.from_iterable(dictionaries)]


def _keeps(module: nn.Module, counts: Callable[[str], bool]) -> bool:
    """Whether a reference to the plain attributes of ``module`` would keep memory."""
    kinds = (torch.Tensor, list, tuple, set, dict)
    return any(isinstance(value, kinds) for name, value in vars(module).items() if counts(name))
