"""What a call of ``generate`` has made so far."""

from __future__ import annotations

from typing import Any

import torch

Kept = tuple[torch.Tensor, ...]


class Answer:
    """``ids``: int64 ``(batch, tokens)``, the prompt included. ``scores`` and ``logits``: of each step, fp32
    ``(batch, vocabulary)``, where the caller wants them. All of it belongs to the caller.
    """

    def __init__(self, ids: torch.Tensor, config: Any) -> None:
        wants = config.return_dict_in_generate
        self.ids = ids
        self.scores: Kept | None = () if wants and config.output_scores else None
        self.logits: Kept | None = () if wants and config.output_logits else None

    def copied(self, logits: torch.Tensor) -> torch.Tensor:
        """``logits`` as eager hands them to processors. A copy, because the next step overwrites the stepper's buffer."""
        return logits.to(copy=True, dtype=torch.float32, device=self.ids.device)

    def keep(self, logits: torch.Tensor, scores: torch.Tensor) -> None:
        """Keep a step's logits and what processors made of them, where they are wanted."""
        if self.scores is not None:
            self.scores += (scores,)
        if self.logits is not None:
            self.logits += (logits,)

    def keep_raw(self, logits: torch.Tensor) -> None:
        """Keep the logits of a step without processors, as they lie in the stepper's buffer."""
        if self.scores is not None or self.logits is not None:
            own = self.copied(logits)
            self.keep(own, own)

    def append(self, tokens: torch.Tensor) -> None:
        """``tokens``: int64 ``(batch, any)``."""
        self.ids = torch.cat([self.ids, tokens], dim=-1)

    def drop_last(self) -> None:
        """Undo the last step."""
        self.ids = self.ids[:, :-1]
        if self.scores is not None:
            self.scores = self.scores[:-1]
        if self.logits is not None:
            self.logits = self.logits[:-1]
