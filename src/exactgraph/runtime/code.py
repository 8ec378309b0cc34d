"""The functions that a model's forward pass is made of. Whoever replaces one (a fused kernel, another attention) means it."""

from __future__ import annotations

import sys
from typing import Any

from torch import nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

# Functions that the modules of a model reach through other rooms than their own.
_ELSEWHERE = ("torch.nn.functional", "transformers.integrations.sdpa_attention")


class Code:
    """Forward functions of ``kinds``, what else the rooms that define them hold, and the attention function of ``model``."""

    def __init__(self, model: nn.Module, kinds: set[type[nn.Module]]) -> None:
        self._model = model
        self._forwards = {kind: kind.forward for kind in kinds}
        names = {*_ELSEWHERE, *(kind.__module__ for kind in kinds)}
        rooms = [vars(sys.modules[name]) for name in names if name in sys.modules]
        # What is no function, data may be; and names may come.
        self._rooms = [(room, [(name, value) for name, value in room.items() if callable(value)]) for room in rooms]
        self._attention = _attention(model)

    def changed(self) -> str | None:
        """``attention`` or ``code``, or None."""
        if _attention(self._model) is not self._attention:
            return "attention"
        if any(kind.forward is not forward for kind, forward in self._forwards.items()):
            return "code"
        if any(room.get(name) is not value for room, functions in self._rooms for name, value in functions):
            return "code"
        return None


def _attention(model: Any) -> Any:
    """The function behind the implementation: anybody may register another one under its name."""
    name = model.config._attn_implementation
    return ALL_ATTENTION_FUNCTIONS.get(name) if name in ALL_ATTENTION_FUNCTIONS else None
