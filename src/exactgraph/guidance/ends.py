"""The end of a sequence as one of hundreds of ids: a look-up on the device, no loop on the host."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from transformers import StoppingCriteria

from exactgraph.refusal import UserError


class EndSet(StoppingCriteria):
    """A sequence ends with any of ``ids``, like under ``generate(eos_token_id=[…])``, which looks the same way.

    ``eos_token_id``: int64 ``(ids,)`` on ``device``; by this name transformers knows that ended sequences are to be padded.
    """

    def __init__(self, ids: Iterable[int], device: torch.device) -> None:
        listed = sorted(set(ids))
        if not listed:
            raise UserError("A set of ends needs at least one id.")
        with torch.inference_mode(False):
            self.eos_token_id = torch.tensor(listed, dtype=torch.int64, device=device)

    def __call__(self, input_ids: torch.Tensor, scores: Any = None, **kwargs: Any) -> torch.Tensor:
        """Bool ``(rows,)`` from tokens int64 ``(rows, tokens)``."""
        return torch.isin(input_ids[:, -1], self.eos_token_id)
