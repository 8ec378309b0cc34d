"""Module graphs inside Hugging Face's own decode loop: the published ladder's first rung.

``C022`` captures the MLP of each layer for one token of one sequence. Attention, norms and head stay eager, and so does
every other shape: prompts go through the untouched module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from exactgraph.candidates.base import Candidate, Context, Decisions, Installation
from exactgraph.capture.buffers import buffer
from exactgraph.capture.graph import Capturer
from exactgraph.models.layout import layout_of


class C022(Candidate):
    id = "C022"

    def plan(self, model: Any, context: Context) -> Decisions:
        layout = layout_of(model)
        # One capture here shows whether this module can be captured at all, before a validation is spent on it.
        _graphed(layout.mlps[0], layout.hidden_size, context.capturer)
        return {"captured": "mlp", "graphs": len(layout.mlps), "shape": [1, 1, layout.hidden_size]}

    def install(self, model: Any, decisions: Decisions, context: Context) -> Installation:
        layout = layout_of(model)
        return Installation(forwards={mlp: _graphed(mlp, layout.hidden_size, context.capturer) for mlp in layout.mlps})


def _graphed(module: nn.Module, hidden_size: int, capturer: Capturer) -> Callable[[torch.Tensor], torch.Tensor]:
    """A forward that replays ``module`` for hidden states of shape ``(1, 1, hidden_size)`` and runs it eagerly for others.

    The returned tensor is the graph's static output. It is read by the residual addition that follows in the same layer and
    overwritten by the same layer's next replay, so nothing that reaches a caller aliases it.
    """
    parameter = next(module.parameters())
    shape = (1, 1, hidden_size)
    static_input = buffer(shape, parameter.dtype, parameter.device)
    eager = module.forward
    graph = capturer.capture(lambda: (eager(static_input),))
    (static_output,) = graph.outputs

    def forward(hidden: torch.Tensor) -> torch.Tensor:
        if hidden.shape != shape:
            result: torch.Tensor = eager(hidden)
            return result
        static_input.copy_(hidden)
        graph.replay()
        return static_output

    return forward


CANDIDATES = {C022.id: C022()}
