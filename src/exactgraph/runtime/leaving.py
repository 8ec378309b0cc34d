"""A stepper under which user code runs: it lets go of the sequence once that code made the model another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from exactgraph.candidates.base import Stepper


class LeavingStepper(Stepper):
    """``stepper`` as long as ``stays()``, which is asked before each step; then none, and the loop goes on in eager."""

    def __init__(self, stepper: Stepper, stays: Callable[[], bool]) -> None:
        self._stepper = stepper
        self._stays = stays

    def begin(self, cache: Any) -> None:
        self._stepper.begin(cache)

    def step(self, token: torch.Tensor) -> torch.Tensor | None:
        return self._stepper.step(token) if self._stays() else None

    def end(self, cache: Any) -> None:
        self._stepper.end(cache)
