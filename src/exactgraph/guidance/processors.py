"""Processors on the device: guidance, a monotonic constraint, temperatures by condition, and biases with a memory.

State has one entry a row. It is made by ``begin`` and then written in place; ``begin`` with as many rows as before writes the
same buffers, since graphs hold their addresses.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from exactgraph.capture.buffers import buffer
from exactgraph.refusal import UserError

Half = Literal["first", "second"]


@dataclass(frozen=True)
class ClassifierFree:
    """Classifier-free guidance: the scores of a doubled batch become those of the single one.

    Scores ``(2 * rows, vocabulary)`` hold the conditional rows in the ``conditional`` half and the unconditional ones in the
    other. The result is ``unconditional + (conditional - unconditional) * scale``, rounded as in transformers.
    """

    scale: float
    conditional: Half

    def __post_init__(self) -> None:
        if self.conditional not in ("first", "second"):
            raise UserError(f"conditional is {self.conditional!r}; it says which half is conditional: first or second.")

    def begin(self, prompt: torch.Tensor) -> None:
        pass

    def advance(self, token: torch.Tensor) -> None:
        pass

    def apply(self, scores: torch.Tensor) -> torch.Tensor:
        if scores.shape[0] % 2:
            raise UserError(f"Guidance needs the logits of a doubled batch, and these have {scores.shape[0]} rows.")
        first, second = scores.chunk(2)
        conditional, unconditional = (first, second) if self.conditional == "first" else (second, first)
        return unconditional + (conditional - unconditional) * self.scale


class Monotonic:
    """Times never go back: after the time ``t`` no id from ``first`` to ``t - 1`` is chosen.

    Ids ``first`` to ``last`` are times in ascending order. After one of ``resets`` (the start of another sequence) any time
    may follow again.
    """

    def __init__(self, first: int, last: int, resets: Iterable[int], vocabulary: int, device: torch.device) -> None:
        if not 0 <= first <= last < vocabulary:
            raise UserError(f"Times from {first} to {last} do not lie within a vocabulary of {vocabulary}.")
        self._first, self._last = first, last
        with torch.inference_mode(False):
            self._resets = _table(resets, vocabulary, device)
            self._ids = torch.arange(vocabulary, device=device)
        self._floor: torch.Tensor | None = None

    def begin(self, prompt: torch.Tensor) -> None:
        self._floor = _like(self._floor, (prompt.shape[0],), prompt.device)
        self._floor.fill_(self._first)
        for column in prompt.unbind(dim=1):
            self.advance(column)

    def advance(self, token: torch.Tensor) -> None:
        assert self._floor is not None
        is_time = (token >= self._first) & (token <= self._last)
        risen = torch.where(is_time, token, self._floor)
        self._floor.copy_(risen.masked_fill(self._resets[token], self._first))

    def apply(self, scores: torch.Tensor) -> torch.Tensor:
        assert self._floor is not None
        gone = (self._ids >= self._first) & (self._ids < self._floor[:, None])
        return scores.masked_fill(gone, -torch.inf)


@dataclass(frozen=True)
class Condition:
    """``temperature`` holds where the token ``back`` places before the next one (1 is the last) is one of ``ids``."""

    temperature: float
    ids: tuple[int, ...]
    back: int = 1


class ConditionalTemperature:
    """Scores are divided by the temperature of the first of ``conditions`` that holds, or by ``default``."""

    def __init__(self, default: float, conditions: Sequence[Condition], vocabulary: int, device: torch.device) -> None:
        if not all(value > 0 for value in (default, *(condition.temperature for condition in conditions))):
            raise UserError("Temperatures have to be above 0.")
        self._default = default
        self._conditions = tuple(conditions)
        with torch.inference_mode(False):
            self._tables = [_table(condition.ids, vocabulary, device) for condition in conditions]
        self._memory = max((condition.back for condition in conditions), default=1)
        self._last: torch.Tensor | None = None  # the newest token comes last; -1 stands for none

    def begin(self, prompt: torch.Tensor) -> None:
        self._last = _like(self._last, (prompt.shape[0], self._memory), prompt.device)
        self._last.fill_(-1)
        known = prompt[:, -self._memory :]
        if known.shape[1]:
            self._last[:, -known.shape[1] :].copy_(known)

    def advance(self, token: torch.Tensor) -> None:
        assert self._last is not None
        self._last.copy_(torch.cat([self._last[:, 1:], token[:, None]], dim=1))

    def apply(self, scores: torch.Tensor) -> torch.Tensor:
        assert self._last is not None
        # Divided by numbers of the host and then selected: on a GPU a division by a tensor has other bits.
        result = scores / self._default
        for condition, table in zip(reversed(self._conditions), reversed(self._tables), strict=True):
            token = self._last[:, -condition.back]
            holds = table[token.clamp(min=0)] & (token >= 0)
            result = torch.where(holds[:, None], scores / condition.temperature, result)
        return result


class Automaton:
    """A bias that looks back: tokens move a state, and each state has a bias of its own.

    ``kind_of``: int64 ``(vocabulary,)``, the kind of each token. ``follows``: int64 ``(states, kinds)``, the state that a
    token of a kind leads to. ``bias``: fp32 ``(states, kinds)``, added to the scores of all tokens of the kind. Sequences
    begin in state 0, and their prompt moves it.
    """

    def __init__(self, kind_of: torch.Tensor, follows: torch.Tensor, bias: torch.Tensor) -> None:
        if follows.shape != bias.shape or follows.ndim != 2:
            raise UserError(f"follows {tuple(follows.shape)} and bias {tuple(bias.shape)} have to be (states, kinds), both.")
        with torch.inference_mode(False):
            self._kind_of, self._follows, self._bias = kind_of.clone(), follows.clone(), bias.clone()
        self._state: torch.Tensor | None = None

    def begin(self, prompt: torch.Tensor) -> None:
        self._state = _like(self._state, (prompt.shape[0],), prompt.device)
        self._state.zero_()
        for column in prompt.unbind(dim=1):
            self.advance(column)

    def advance(self, token: torch.Tensor) -> None:
        assert self._state is not None
        self._state.copy_(self._follows[self._state, self._kind_of[token]])

    def apply(self, scores: torch.Tensor) -> torch.Tensor:
        assert self._state is not None
        return scores + self._bias[self._state][:, self._kind_of]


def _table(ids: Iterable[int], vocabulary: int, device: torch.device) -> torch.Tensor:
    """Bool ``(vocabulary,)``: which ids are among ``ids``."""
    listed = torch.tensor(sorted(set(ids)), dtype=torch.int64)
    if listed.numel() and not 0 <= int(listed[0]) <= int(listed[-1]) < vocabulary:
        raise UserError(f"Ids from {int(listed[0])} to {int(listed[-1])} do not lie within a vocabulary of {vocabulary}.")
    table = torch.zeros(vocabulary, dtype=torch.bool)
    table[listed] = True
    return table.to(device)


def _like(state: torch.Tensor | None, shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """``state`` where it has ``shape``, else a new int64 buffer."""
    if state is not None and tuple(state.shape) == shape:
        return state
    return buffer(shape, torch.int64, device)
