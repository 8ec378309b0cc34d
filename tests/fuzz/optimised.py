"""A session in a world's model, opened as a stage or a program does it, and a count of how its calls ran."""

from __future__ import annotations

from contextlib import suppress

from tests.fuzz.recorded import RecordedCapturer
from tests.fuzz.sequences import Sequence
from tests.fuzz.world import World

from exactgraph.candidates.base import Context
from exactgraph.candidates.registry import candidate
from exactgraph.capture import capturer_for
from exactgraph.refusal import Refused
from exactgraph.runtime.attention import pinned
from exactgraph.runtime.session import Session

CAPTURED, EAGER, REFUSED = "captured", "eager", "refused"


class Optimised:
    """``paths`` has one entry a call: through the candidate, eager with a session, or without one since none was granted."""

    def __init__(self, world: World, sequence: Sequence) -> None:
        self._world, self._sequence = world, sequence
        self._session: Session | None = None
        self.paths: list[str] = []
        world.note = self._note
        self._open()

    def _open(self) -> None:
        model, chosen = self._world.model, candidate(self._sequence["candidate"])
        capacity = self._sequence["capacity"]
        capturer = capturer_for(model.device) if model.device.type == "cuda" else RecordedCapturer()
        context = Context(capturer, self._sequence["budget"], min(24, capacity), capacity)
        try:
            with pinned(self._world.pin):
                decisions = chosen.plan(model, context)
            self._session = Session(model, chosen, decisions, context, self._world.pin)
        except Refused:
            self._session = None
        self._world.serialised = self._session is not None

    def reopen(self) -> None:
        """As ``restore`` and ``optimize`` of a program: whatever the model is now."""
        self.close()
        # What torch refuses in a model that was tampered with is a result of the build, and the model stays eager: flash
        # attention takes no float32, and under a default device that is not the model's no call runs. In a fresh model, as
        # each sequence begins with, no plan may die.
        with suppress(RuntimeError):
            self._open()

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
        self._session = None
        self._world.serialised = False

    def _note(self) -> None:
        if self._session is None:
            self.paths.append(REFUSED)
            return
        last = self._session.last
        served = last is not None and last.refusal is None and (last.steps is None or last.steps.captured > 0)
        self.paths.append(CAPTURED if served else EAGER)
