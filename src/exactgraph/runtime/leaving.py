"""What becomes of a call once code of the user's own ran in it: it goes on as it is, or leaves what was captured.

The whole model is looked at again after such code, before anybody sees what a captured step made. That takes the host a while,
and a replay takes the device longer. So the step is begun first where it can do no harm, the model is looked at while it runs,
and what it made of a model that changed is thrown away.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from exactgraph.candidates.base import Stepper
from exactgraph.refusal import Refusal
from exactgraph.runtime.guard import Guard, Held
from exactgraph.runtime.stand_in import StandIns

_CLOSED = Refusal("closed", "The session was closed while this call ran.")


class Stay:
    """Whether a call stays with what was captured. ``left``: why it does not; then it never comes back.

    ``guard``: that of the session, None once it is closed.
    """

    def __init__(self, guard: Callable[[], Guard | None], stand_ins: StandIns) -> None:
        self.left: Refusal | None = None
        self._guard = guard
        self._stand_ins = stand_ins
        self._held: Held | None = None

    def hold(self) -> None:
        """Keep the memory that graphs read, as long as the call stays."""
        guard = self._guard()
        assert guard is not None
        self._held = guard.hold()

    def harmless(self) -> bool:
        """Whether a replay would do no harm, whatever became of the model: it reads what is there, and writes what is ours."""
        guard = self._guard()
        if self.left is not None or guard is None or self._held is None:
            return False
        # Addresses last: tensors are not asked under a mode of the user's.
        return guard.outside() is None and self._held.there()

    def __call__(self) -> bool:
        """Look at everything."""
        guard = self._guard()
        if self.left is None:
            self.left = _CLOSED if guard is None else guard.refusal()
        if self.left is not None:
            self._held = None
            # Stand-ins for single modules keep nothing from step to step, so a call goes on without them at any of them.
            self._stand_ins.detach()
        return self.left is None


class LeavingStepper(Stepper):
    """``stepper`` as long as ``stay`` says so after each step; then none, and the loop goes on in eager."""

    def __init__(self, stepper: Stepper, stay: Stay) -> None:
        self._stepper = stepper
        self._stay = stay
        self._prepared: bool | None = None
        self.batches = stepper.batches
        stay.hold()

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

    def prepare(self) -> None:
        self._prepared = self._harmless()

    def _harmless(self) -> bool:
        return self._stepper.replays() and self._stay.harmless()

    def run(self) -> torch.Tensor | None:
        harmless = self._harmless() if self._prepared is None else self._prepared
        self._prepared = None
        if harmless:
            logits = self._stepper.run()
            stays = self._stay()  # while the device works
        else:
            # What captures or grows must not begin under another model.
            stays = self._stay()
            logits = self._stepper.run() if stays else None
        if stays:
            self.why = self._stepper.why
            return logits
        self.why = "The user's own code changed what the graphs rest on."
        return None

    def choose(self) -> torch.Tensor:
        return self._stepper.choose()

    def end(self, cache: Any, length: int) -> None:
        self._stepper.end(cache, length)
