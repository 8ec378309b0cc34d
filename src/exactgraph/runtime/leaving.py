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
        self.batches = stepper.batches

    def serve(self, input_ids: torch.Tensor, model_kwargs: dict[str, Any]) -> None:
        self._stepper.serve(input_ids, model_kwargs)

    def eager_arguments(self, input_ids: torch.Tensor, cache: Any) -> dict[str, Any]:
        return self._stepper.eager_arguments(input_ids, cache)

    def receive(self, cache: Any, ids: torch.Tensor, *, own: bool) -> None:
        self._stepper.receive(cache, ids, own=own)

    def begin(self, cache: Any) -> None:
        self._stepper.begin(cache)

    def feed(self, token: torch.Tensor) -> None:
        self._stepper.feed(token)

    def run(self) -> torch.Tensor | None:
        if not self._stays():
            self.why = "The user's own code changed what the graphs rest on."
            return None
        logits = self._stepper.run()
        self.why = self._stepper.why
        return logits

    def choose(self) -> torch.Tensor:
        return self._stepper.choose()

    def end(self, cache: Any, length: int) -> None:
        self._stepper.end(cache, length)
