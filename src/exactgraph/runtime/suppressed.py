"""Processors that only forbid tokens, as Whisper's generation has them, without their cost.

transformers asks in every step anew which of the vocabulary's tokens are forbidden, which takes a GPU dozens of kernels. The
answer is the same in every step of a call, so it is asked for once.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import SuppressTokensAtBeginLogitsProcessor, SuppressTokensLogitsProcessor


class Suppressed:
    """``rules``: forbidden token IDs, int64 ``(ids,)``, each with the length of the sequence, in tokens, at which they are
    forbidden; None for any.
    """

    def __init__(self, rules: list[tuple[torch.Tensor, int | None]]) -> None:
        self.rules = rules
        self._masks: list[torch.Tensor] = []

    @classmethod
    def known(cls, processors: Any) -> Suppressed | None:
        """What ``processors`` forbid, or None where one of them does something else."""
        rules: list[tuple[torch.Tensor, int | None]] = []
        for processor in processors:
            if type(processor) is SuppressTokensLogitsProcessor:
                rules.append((processor.suppress_tokens, None))
            elif type(processor) is SuppressTokensAtBeginLogitsProcessor:
                rules.append((processor.begin_suppress_tokens, processor.begin_index))
            else:
                return None
        return cls(rules)

    def __call__(self, scores: torch.Tensor, length: int) -> torch.Tensor:
        """What the processors make of ``scores``, fp32 ``(batch, vocabulary)``, after sequences of ``length`` tokens."""
        if not self._masks:
            vocabulary = torch.arange(scores.shape[-1], device=scores.device)
            self._masks = [torch.isin(vocabulary, tokens.to(scores.device)) for tokens, _ in self.rules]
        for mask, (_, at) in zip(self._masks, self.rules, strict=True):
            if at is None or at == length:
                scores = torch.where(mask, -float("inf"), scores)
        return scores
