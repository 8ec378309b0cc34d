"""A candidate installed in a model. ``model.generate`` keeps its arguments and its results.

Outside a call of ``generate`` the model is untouched: stand-in forwards are attached when a call begins and taken away
when it ends, so ``model(...)``, training and saving see the model as it was.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from exactgraph.candidates.base import Candidate, Context, Decisions
from exactgraph.refusal import Refusal, Refused
from exactgraph.runtime.attention import pinned
from exactgraph.runtime.decode import DecodeLoop, Steps, argument_refusal
from exactgraph.runtime.guard import Guard, hooked


@dataclass(frozen=True)
class Call:
    """How the last call of ``generate`` ran: through the candidate, or eager with the reason."""

    refusal: Refusal | None
    steps: Steps | None


class Session:
    """Installs ``candidate`` into ``model`` until :meth:`close`.

    One call runs at a time; calls from other threads wait, a call from inside a running one (a streamer or a processor that
    generates) runs eager. Raises ``Refused`` where the candidate cannot be installed.
    """

    def __init__(self, model: Any, candidate: Candidate, decisions: Decisions, context: Context, attention: str) -> None:
        name = hooked(model)
        if name is not None:
            raise Refused("hooks", f"Module {name} has a hook or a replaced forward; captured work would not call it.")
        self.model = model
        self.last: Call | None = None
        self._attention = attention
        self._lock = threading.RLock()
        self._running = False
        self._eager = model.generate
        with pinned(attention):
            self._installation = candidate.install(model, decisions, context)
        self._guard = Guard(model)
        model.generate = self.generate

    def close(self) -> None:
        """Give back the untouched model."""
        del self.model.generate

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def eager(self, *args: Any, **kwargs: Any) -> Any:
        """The untouched ``generate``, under the session's attention pin."""
        with pinned(self._attention):
            return self._eager(*args, **kwargs)

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """``model.generate`` through the candidate, or eager where the candidate does not serve this call."""
        with self._lock:
            if self._running:
                return self._fall_back(Refusal("nested", "A call inside a running call runs eager."), args, kwargs)
            refusal = self._guard.refusal()
            if refusal is not None:
                return self._fall_back(refusal, args, kwargs)
            if self._installation.stepper is None:
                with self._attached():
                    result = self.eager(*args, **kwargs)
                self.last = Call(None, None)
                return result
            return self._step(args, kwargs)

    def _step(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        refusal = argument_refusal(kwargs)
        if refusal is not None:
            return self._fall_back(refusal, args, kwargs)
        assert self._installation.stepper is not None
        loop = DecodeLoop(self._installation.stepper, kwargs.get("streamer"))
        try:
            with self._attached():
                # transformers does not pass the streamer on to the hook, and would feed it the prompt before the loop had a
                # chance to refuse: the loop has it from here.
                result = self.eager(*args, custom_generate=loop, **{**kwargs, "streamer": None})
        except Refused as refused:
            return self._fall_back(refused.refusal, args, kwargs)
        self.last = Call(None, loop.steps)
        return result

    def _fall_back(self, refusal: Refusal, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = self.eager(*args, **kwargs)
        self.last = Call(refusal, None)
        return result

    @contextmanager
    def _attached(self) -> Iterator[None]:
        self._running = True
        for module, forward in self._installation.forwards.items():
            module.forward = forward
        try:
            yield
        finally:
            for module in self._installation.forwards:
                del module.forward
            self._running = False
