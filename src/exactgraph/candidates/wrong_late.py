"""The control ``wrong-late``: right on everything that validation sees, wrong after it. Confirmation must catch it.

Once a sequence is longer than any of the validation set, every step returns the logits of the step before: what a stale
output buffer looks like.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from exactgraph.candidates.base import Candidate, Context, Decisions, Installation
from exactgraph.models.cache import cache_of
from exactgraph.refusal import Refused


class WrongLate(Candidate):
    id = "wrong-late"
    control = True
    timed = False
    plans = False

    def install(self, model: Any, decisions: Decisions, context: Context) -> Installation:
        if context.confirmed_length <= context.validated_length:
            raise Refused("confirmation-too-short", "Confirmation sees no sequence longer than validation's longest.")
        return Installation(forwards={model: _stale_after(model.forward, context.validated_length)})


def _stale_after(forward: Callable[..., Any], length: int) -> Callable[..., Any]:
    last: torch.Tensor | None = None

    @functools.wraps(forward)
    def stale(*args: Any, **kwargs: Any) -> Any:
        nonlocal last
        output = forward(*args, **kwargs)
        fresh = output.logits
        if last is not None and cache_of(output).get_seq_length() > length:
            output.logits = last
        last = fresh
        return output

    return stale


CANDIDATES = {WrongLate.id: WrongLate()}
