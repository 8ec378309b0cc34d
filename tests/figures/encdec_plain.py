"""The processors of ``guidance`` as a user would write them: their state is found anew from all tokens, on the host."""

from __future__ import annotations

import torch
from transformers import LogitsProcessor


class PlainMonotonic(LogitsProcessor):
    def __init__(self, first: int, last: int, resets: set[int]) -> None:
        self.first, self.last, self.resets = first, last, resets

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores = scores.clone()
        for row, tokens in enumerate(input_ids.tolist()):
            latest = self.first
            for token in tokens:
                if token in self.resets:
                    latest = self.first
                elif self.first <= token <= self.last:
                    latest = token
            scores[row, self.first : latest] = -torch.inf
        return scores


class PlainTemperature(LogitsProcessor):
    def __init__(self, default: float, conditions: list[tuple[float, set[int], int]]) -> None:
        self.default, self.conditions = default, conditions

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        rows = []
        for tokens, row in zip(input_ids.tolist(), scores, strict=True):
            holds = (value for value, ids, back in self.conditions if len(tokens) >= back and tokens[-back] in ids)
            rows.append(row / next(holds, self.default))
        return torch.stack(rows)


class PlainBias(LogitsProcessor):
    """Tensors and states as in ``Automaton``."""

    def __init__(self, kinds: torch.Tensor, follows: list[list[int]], bias: torch.Tensor) -> None:
        self.kinds, self.kind_of, self.follows, self.bias = kinds, kinds.tolist(), follows, bias

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        rows = []
        for tokens, row in zip(input_ids.tolist(), scores, strict=True):
            state = 0
            for token in tokens:
                state = self.follows[state][self.kind_of[token]]
            rows.append(row + self.bias[state][self.kinds])
        return torch.stack(rows)
