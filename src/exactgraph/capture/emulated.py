"""Capture without a GPU: a replay runs the captured function again.

What goes wrong with graphs goes wrong here too. Outputs live in buffers that the next replay overwrites, they hold NaN until
the first replay (capture itself computes nothing), and a function that reads anything but its static buffers reads it as it is
at replay. So aliasing, stale buffers and wrong order show in tests on any machine.
"""

from __future__ import annotations

import time

import torch

from exactgraph.capture.graph import Capturer, Function, Graph
from exactgraph.refusal import Refused


class EmulatedGraph(Graph):
    def __init__(self, function: Function) -> None:
        self._function = function
        self.outputs = tuple(_undefined(output) for output in function())

    def replay(self) -> None:
        with torch.no_grad():
            for static, fresh in zip(self.outputs, self._function(), strict=True):
                static.copy_(fresh)


class EmulatedCapturer(Capturer):
    emulated = True

    def capture(self, function: Function) -> Graph:
        started = time.perf_counter()
        try:
            with torch.inference_mode(False), torch.no_grad():
                function()  # the warm-up
                graph = EmulatedGraph(function)
        except RuntimeError as error:
            raise Refused("capture-failed", f"The work cannot be captured: {error}") from error
        self.graphs += 1
        self.seconds += time.perf_counter() - started
        return graph


def _undefined(output: torch.Tensor) -> torch.Tensor:
    static = torch.empty_like(output)
    return static.fill_(float("nan")) if output.is_floating_point() else static.fill_(-1)
