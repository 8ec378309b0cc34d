"""Plain attributes of an object, then and now: an epsilon, an activation, the active adapter, a configuration's entries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

_PLAIN = (bool, int, float, str, type(None), torch.dtype, torch.device)
_NONE = object()


class Values:
    """Attributes of ``owner`` whose names ``counts`` accepts. Objects are compared by identity, containers by content."""

    __slots__ = ("_compound", "_counts", "_keys", "_owner", "_single")

    def __init__(self, owner: Any, counts: Callable[[str], bool]) -> None:
        self._owner, self._counts = owner, counts
        self._keys = frozenset(vars(owner))
        values = [(name, value) for name, value in vars(owner).items() if counts(name)]
        self._single: list[tuple[str, Any]] = [(name, value) for name, value in values if not _is_compound(value)]
        self._compound: list[tuple[str, Any]] = [(name, _content(value)) for name, value in values if _is_compound(value)]

    def changed(self) -> str | None:
        """The name of an attribute that is new, gone or another, or None."""
        now = vars(self._owner)
        for name, value in self._single:
            found = now.get(name, _NONE)
            if found is not value and not (type(found) is type(value) and type(value) in _PLAIN and found == value):
                return name
        for name, content in self._compound:
            if name not in now or _content(now[name]) != content:
                return name
        if now.keys() != self._keys:
            return next((name for name in now if name not in self._keys and self._counts(name)), None)
        return None

    def tensors(self) -> list[torch.Tensor]:
        """Those among the attributes now, and in their containers."""
        now = vars(self._owner)
        found = tree_leaves([now[name] for name, _ in self._compound])
        return [value for value in found if isinstance(value, torch.Tensor)]


def _is_compound(value: Any) -> bool:
    return isinstance(value, (list, tuple, set, dict, torch.Tensor))


def _content(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return id(value), type(value), value.data_ptr() if type(value) is torch.Tensor else 0, value.dtype, value.shape
    if isinstance(value, dict):
        return type(value), [(key, _content(entry)) for key, entry in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value), [_content(entry) for entry in value]
    if isinstance(value, set):
        return type(value), frozenset(value)
    return (type(value), value) if type(value) in _PLAIN else id(value)
