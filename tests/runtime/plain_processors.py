"""The processors of ``guidance`` as a user would write them: over all tokens, with Python loops."""

from __future__ import annotations

from typing import Any

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
            for token in range(self.first, latest):
                scores[row, token] = float("-inf")
        return scores


class PlainTemperature(LogitsProcessor):
    def __init__(self, default: float, conditions: list[tuple[float, set[int], int]]) -> None:
        self.default, self.conditions = default, conditions

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        rows = []
        for tokens, row in zip(input_ids.tolist(), scores, strict=True):
            temperature = self.default
            for value, ids, back in self.conditions:
                if len(tokens) >= back and tokens[-back] in ids:
                    temperature = value
                    break
            rows.append(row / temperature)
        return torch.stack(rows)


class PlainMemory(LogitsProcessor):
    """A bias of a state that tokens move, found anew from all tokens."""

    def __init__(self, kind_of: Any, follows: Any, bias: torch.Tensor) -> None:
        self.kind_of, self.follows, self.bias = kind_of, follows, bias

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores = scores.clone()
        for row, tokens in enumerate(input_ids.tolist()):
            state = 0
            for token in tokens:
                state = int(self.follows[state][self.kind_of[token]])
            for token in range(scores.shape[1]):
                scores[row, token] += self.bias[state, self.kind_of[token]]
        return scores
