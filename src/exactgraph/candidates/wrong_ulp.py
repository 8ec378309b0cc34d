"""The control ``wrong-ulp``: one rounding changed. It must be rejected at validation.

The first element of the final hidden state is moved to the next number away from zero, the smallest fault that a kernel
with another rounding or another order of addition can have.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from exactgraph.candidates.base import Candidate, Context, Decisions, Installation
from exactgraph.models.head import output_head
from exactgraph.refusal import Refused

_INTEGER = {torch.bfloat16: torch.int16, torch.float16: torch.int16, torch.float32: torch.int32}


class WrongUlp(Candidate):
    id = "wrong-ulp"
    control = True
    plans = False

    def install(self, model: Any, decisions: Decisions, context: Context) -> Installation:
        head = output_head(model)
        if head is None:
            raise Refused("no-head", f"{type(model).__name__} has no linear output head whose input could be changed.")
        return Installation(forwards={head: _with_one_ulp(head.forward)})


def _with_one_ulp(forward: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    def moved(hidden: torch.Tensor) -> torch.Tensor:
        hidden = hidden.clone()
        # Sign and magnitude: adding one to the pattern is one step away from zero.
        hidden.view(_INTEGER[hidden.dtype])[..., 0] += 1
        return forward(hidden)

    return moved


CANDIDATES = {WrongUlp.id: WrongUlp()}
