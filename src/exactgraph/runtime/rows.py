"""Windows as rows of one call of ``generate``, and answers as windows again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers.modeling_outputs import BaseModelOutput

from exactgraph.models.step_inputs import form_of
from exactgraph.refusal import Refused, UserError

Inputs = dict[str, Any]


def alike(windows: Sequence[Inputs]) -> bool:
    """Whether one call can have all ``windows``: the same names, shapes and dtypes, and equal values of what is no tensor."""
    try:
        return len({form_of(window) for window in windows}) == 1
    except Refused:  # a value of a kind that cannot be compared
        return False


def together(windows: Sequence[Inputs]) -> Inputs:
    """The arguments of one call for all ``windows``: tensors and encoder outputs as rows, the rest as in each of them."""
    return {name: _joined(name, [window[name] for window in windows]) for name in windows[0]}


def padded(prompts: Sequence[torch.Tensor], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """All prompts as one batch, and its mask, both int64 ``(windows, tokens)``."""
    longest = max(prompt.shape[1] for prompt in prompts)
    ids = [torch.nn.functional.pad(prompt, (longest - prompt.shape[1], 0), value=pad) for prompt in prompts]
    masks = [torch.nn.functional.pad(torch.ones_like(prompt), (longest - prompt.shape[1], 0)) for prompt in prompts]
    return torch.cat(ids), torch.cat(masks)


def cut(row: torch.Tensor, ends: Sequence[int]) -> torch.Tensor:
    """``row``, int64 ``(tokens,)``, up to its first end, which stays."""
    found = torch.isin(row, torch.tensor(ends, dtype=row.dtype, device=row.device)).nonzero()
    return row if not len(found) else row[: int(found[0]) + 1]


def _joined(name: str, values: Sequence[Any]) -> Any:
    first = values[0]
    if isinstance(first, torch.Tensor):
        return torch.cat(list(values))
    if isinstance(first, BaseModelOutput):
        return BaseModelOutput(last_hidden_state=torch.cat([value.last_hidden_state for value in values]))
    if any(value != first for value in values):
        raise UserError(f"Windows go into one call only where they have the same {name}.")
    return first
