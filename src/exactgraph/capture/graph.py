"""What capture is, whoever performs it: a function over static buffers becomes a graph that can be replayed.

The captured function reads static input buffers, and the tensors that it returns become static output buffers: every replay
reads the same input addresses and overwrites the same output addresses. Whoever hands an output to a caller copies it first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch

Function = Callable[[], tuple[torch.Tensor, ...]]


class Graph(ABC):
    """A captured function.

    ``outputs`` are static buffers: undefined until the first replay, and again once any other graph of the same capturer is
    replayed, because what one graph needs for a moment may lie where another one's outputs are. Read or copy them before.
    """

    outputs: tuple[torch.Tensor, ...]

    @abstractmethod
    def replay(self) -> None:
        """Run the captured work on the present contents of the static input buffers, on the current stream."""


class Capturer(ABC):
    """Captures functions into graphs that share one memory pool.

    Graphs of one capturer must not run at the same time. ``graphs``, ``seconds`` and ``bytes`` count what capture has cost.
    """

    emulated: bool

    def __init__(self) -> None:
        self.graphs = 0
        self.seconds = 0.0
        self.bytes = 0

    @abstractmethod
    def capture(self, function: Function) -> Graph:
        """Warm ``function`` up, then capture it.

        Raises :class:`exactgraph.refusal.Refused` with the reason ``capture-out-of-memory`` or ``capture-failed``; the model
        and the device are usable afterwards.
        """
