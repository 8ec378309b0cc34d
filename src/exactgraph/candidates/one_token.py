"""Work captured for one token of one sequence, and the forwards that replay it.

What these forwards stand in for is called by Hugging Face's own layers; whatever is not one token of one sequence (prompts,
batches, the checks of assisted decoding) runs the untouched module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from exactgraph.capture.buffers import buffer
from exactgraph.capture.graph import Capturer

Forward = Callable[[torch.Tensor], torch.Tensor]
Forwards = dict[nn.Module, Callable[..., Any]]
Work = Callable[[torch.Tensor], tuple[torch.Tensor, ...]]


class OneToken:
    """``work`` as a graph for hidden states of shape ``(1, 1, hidden_size)``, in the dtype and on the device of ``like``.

    ``work`` must call forwards that were bound before any stand-in is attached: it may run again at replay.
    """

    def __init__(self, work: Work, like: torch.Tensor, hidden_size: int, capturer: Capturer) -> None:
        static_input = buffer((1, 1, hidden_size), like.dtype, like.device)
        self._input = static_input
        self._graph = capturer.capture(lambda: work(static_input))

    def serves(self, hidden: torch.Tensor) -> bool:
        """Whether ``hidden`` is one token. Another dtype is not converted: the eager module refuses or promotes it."""
        return hidden.shape == self._input.shape and hidden.dtype == self._input.dtype

    def __call__(self, hidden: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The work on ``hidden``, in static buffers.

        All graphs of a capturer share one pool, so a later replay of any of them may overwrite these: they have to be read or
        copied before it.
        """
        self._input.copy_(hidden)
        self._graph.replay()
        return self._graph.outputs


def one_token_forward(module: nn.Module, hidden_size: int, capturer: Capturer, *, copied: bool = False) -> Forward:
    """A forward that replays ``module`` for one token and runs it eagerly for every other shape.

    It returns the graph's static output where the layer reads it at once (a residual addition, a projection, the next
    module's input), and a copy of it if ``copied``: where a caller of the model may keep it.
    """
    eager = module.forward
    token = OneToken(lambda hidden: (eager(hidden),), next(module.parameters()), hidden_size, capturer)

    def forward(hidden: torch.Tensor) -> torch.Tensor:
        if not token.serves(hidden):
            result: torch.Tensor = eager(hidden)
            return result
        (static_output,) = token(hidden)
        return static_output.clone() if copied else static_output

    return forward
