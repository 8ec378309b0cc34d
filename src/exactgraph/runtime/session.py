"""A candidate installed in a model. ``model.generate`` keeps its arguments and its results.

Outside a call of ``generate`` the model is untouched: stand-in forwards are attached when a call begins and taken away
when it ends, so ``model(...)``, training and saving see the model as it was.
"""

from __future__ import annotations

import inspect
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from exactgraph.candidates.base import Candidate, Context, Decisions
from exactgraph.refusal import Refusal, Refused
from exactgraph.runtime.arguments import compile_refusal, loop_refusal
from exactgraph.runtime.attention import preferred
from exactgraph.runtime.decode import DecodeLoop, Steps
from exactgraph.runtime.guard import Guard, hooked


@dataclass(frozen=True)
class Call:
    """How a call of ``generate`` ran: through the candidate, or eager with the reason. ``steps`` where our loop ran it."""

    refusal: Refusal | None
    steps: Steps | None = None


class Session:
    """Installs ``candidate`` into ``model`` until :meth:`close`.

    ``last`` says how the last call ran; ``fallbacks`` counts the calls that ran eager by their reason and ``steps`` counts the
    decode steps of our loop, over the session.

    One call runs at a time; calls from other threads wait, a call from inside a running one (a streamer or a processor that
    generates) runs eager. Raises ``Refused`` where the candidate cannot be installed.
    """

    def __init__(self, model: Any, candidate: Candidate, decisions: Decisions, context: Context, attention: str) -> None:
        if "generate" in vars(model):
            raise Refused("installed", "Another session is installed in this model; close it first.")
        name = hooked(model)
        if name is not None:
            raise Refused("hooks", f"Module {name} has a hook or a replaced forward; captured work would not call it.")
        self.model = model
        self.last: Call | None = None
        self.fallbacks: Counter[Refusal] = Counter()
        self.steps = Steps()
        self._attention = attention
        self._lock = threading.RLock()
        self._running = False
        self._eager = model.generate
        self._signature = inspect.signature(model.generate)
        with preferred(attention):
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
        with preferred(self._attention):
            return self._eager(*args, **kwargs)

    def served_by_eager(self) -> str | None:
        """Why the calls so far, exact as they are, are no merit of the candidate's; None where it served them."""
        if self.fallbacks:
            return next(iter(self.fallbacks)).sentence
        if self.steps.eager and not self.steps.captured:
            return "Every decode step ran eager: no length of these sequences was captured."
        return None

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """``model.generate`` through the candidate, or eager where the candidate does not serve this call."""
        with self._lock:
            named = self._by_name(args, kwargs)
            self.last = None
            if self._running:
                with self._detached():
                    return self._fall_back(Refusal("nested", "A call inside a running call runs eager."), named)
            refusal = self._guard.refusal()
            if refusal is not None:
                return self._fall_back(refusal, named)
            if self._installation.stepper is None:
                refusal = compile_refusal(self.model, named)
                if refusal is not None:
                    return self._fall_back(refusal, named)
                with self._attached():
                    result = self.eager(**{**named, **self._installation.arguments})
                self.last = Call(None)
                return result
            return self._step(named)

    def _by_name(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments of a call, those given by position too, by their names."""
        bound = self._signature.bind_partial(*args, **kwargs).arguments
        others = bound.pop("kwargs", {})
        return {**bound, **others}

    def _step(self, kwargs: dict[str, Any]) -> Any:
        refusal = loop_refusal(kwargs)
        if refusal is not None:
            return self._fall_back(refusal, kwargs)
        assert self._installation.stepper is not None
        loop = DecodeLoop(self._installation.stepper, kwargs.get("streamer"))
        try:
            with self._attached():
                # transformers does not pass the streamer on to the hook, and would feed it the prompt before the loop had a
                # chance to refuse: the loop has it from here.
                result = self.eager(**{**kwargs, "custom_generate": loop, "streamer": None})
        except Refused as refused:
            return self._fall_back(refused.refusal, kwargs)
        self.last = Call(None, loop.steps)
        self.steps.captured += loop.steps.captured
        self.steps.eager += loop.steps.eager
        return result

    def _fall_back(self, refusal: Refusal, kwargs: dict[str, Any]) -> Any:
        result = self.eager(**kwargs)
        self.last = Call(refusal)
        self.fallbacks[refusal] += 1
        return result

    @contextmanager
    def _attached(self) -> Iterator[None]:
        """The stand-in forwards at work in the block."""
        self._running = True
        self._attach()
        try:
            yield
        finally:
            self._detach()
            self._running = False

    @contextmanager
    def _detached(self) -> Iterator[None]:
        """The untouched model in the block, inside a call that goes on afterwards."""
        self._detach()
        try:
            yield
        finally:
            self._attach()

    def _attach(self) -> None:
        for module, forward in self._installation.forwards.items():
            module.forward = forward

    def _detach(self) -> None:
        for module in self._installation.forwards:
            del module.forward
