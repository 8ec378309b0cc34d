"""Capture without a GPU: a replay runs the captured function again.

What goes wrong with graphs goes wrong here too. Outputs live in buffers that the next replay overwrites. They hold NaN until
the first replay (capture itself computes nothing), and again once another graph of the capturer is replayed: the graphs share
a pool. A function that reads anything but its static buffers reads it as it is at replay. So aliasing, stale buffers and wrong
order show in tests on any machine.
"""

from __future__ import annotations

import time

import torch

from exactgraph.capture.graph import Capturer, Function, Graph
from exactgraph.refusal import Refused


class EmulatedGraph(Graph):
    def __init__(self, function: Function, pool: Pool) -> None:
        self._function = function
        self._pool = pool
        self.outputs = tuple(_undefine(torch.empty_like(output)) for output in function())

    def replay(self) -> None:
        with torch.no_grad():
            self._pool.replayed(self)
            for static, fresh in zip(self.outputs, self._function(), strict=True):
                static.copy_(fresh)


class Pool:
    """The memory that graphs of one capturer share: only the outputs of the graph that was replayed last are defined."""

    def __init__(self) -> None:
        self._last: EmulatedGraph | None = None

    def replayed(self, graph: EmulatedGraph) -> None:
        """``graph`` is about to be replayed."""
        if self._last is not None and self._last is not graph:
            for output in self._last.outputs:
                _undefine(output)
        self._last = graph


class EmulatedCapturer(Capturer):
    emulated = True

    def __init__(self) -> None:
        super().__init__()
        self._pool = Pool()

    def capture(self, function: Function) -> Graph:
        started = time.perf_counter()
        try:
            with torch.inference_mode(False), torch.no_grad():
                function()  # the warm-up
                graph = EmulatedGraph(function, self._pool)
        except RuntimeError as error:
            raise Refused("capture-failed", f"The work cannot be captured: {error}") from error
        self.graphs += 1
        self.seconds += time.perf_counter() - started
        return graph


def _undefine(output: torch.Tensor) -> torch.Tensor:
    return output.fill_(float("nan") if output.is_floating_point() else -1)
