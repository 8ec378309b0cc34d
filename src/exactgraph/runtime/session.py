"""A candidate installed in a model. ``model.generate`` keeps its arguments and its results.

Outside a call of ``generate`` the model is untouched: stand-in forwards are attached when a call begins and taken away
when it ends, so ``model(...)``, training and saving see the model as it was. While a call runs, they serve its thread alone.
"""

from __future__ import annotations

import inspect
import logging
import os
import threading
from collections import Counter
from dataclasses import dataclass
from typing import Any

from exactgraph.candidates.base import Candidate, Context, Decisions, Installation
from exactgraph.models.cache import CACHE_NAMES
from exactgraph.refusal import Refusal, Refused
from exactgraph.runtime.arguments import compile_refusal, loop_refusal
from exactgraph.runtime.attention import preferred
from exactgraph.runtime.decode import DecodeLoop, Steps
from exactgraph.runtime.fitness import unfit
from exactgraph.runtime.guard import Guard, around
from exactgraph.runtime.leaving import LeavingStepper, Stay
from exactgraph.runtime.stand_in import StandIns, caller
from exactgraph.runtime.user_code import given_user_code, watched

_log = logging.getLogger(__name__)
_FORKED = Refusal("forked", "This process was forked after capture; captured work belongs to the process that captured it.")
_CLOSED = Refusal("closed", "The session was closed while this call waited for another one.")
_NESTED = Refusal("nested", "A call inside a running call runs eager.")


@dataclass(frozen=True)
class Call:
    """How a call of ``generate`` ran: through the candidate, or eager with the reason, if only from some step on.

    ``steps`` where our loop ran it.
    """

    refusal: Refusal | None
    steps: Steps | None = None


class Session:
    """Installs ``candidate`` into ``model`` until :meth:`close`.

    ``last`` says how the last call ran. Over the session, ``served`` counts the calls that ran through the candidate,
    ``fallbacks`` those that ran eager by their reason, and ``steps`` the decode steps of our loop.

    One call runs at a time; calls from other threads wait, a call from inside a running one (a streamer or a processor that
    generates) runs eager. A copy of the model is an untouched one. Raises ``Refused`` where the candidate cannot be installed.
    """

    def __init__(self, model: Any, candidate: Candidate, decisions: Decisions, context: Context, attention: str) -> None:
        if "generate" in vars(model):
            raise Refused("installed", "Another session is installed in this model; close it first.")
        refusal = unfit(model) or around(model.device)
        if refusal is not None:
            raise Refused(refusal.reason, refusal.sentence)
        self.model = model
        self.clear()
        self._attention = attention
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._eager = model.generate
        self._signature = inspect.signature(model.generate)
        with preferred(attention):
            self._installation = candidate.install(model, decisions, context)
        self._stand_ins = StandIns(self._installation.forwards)
        self._guard: Guard | None = Guard(model, self._stand_ins.of)
        model.generate = self.generate
        # Copying and pickling ask the instance first. A copy must not generate through this session.
        vars(model)["__reduce_ex__"] = self._reduced

    def clear(self) -> None:
        """Begin to count anew."""
        self.last: Call | None = None
        self.served = 0
        self.fallbacks: Counter[Refusal] = Counter()
        self.steps = Steps()

    def close(self) -> None:
        """Give back the untouched model, and let go of everything that was captured. Waits for a call in another thread."""
        if self._stand_ins.running == caller():
            raise Refused(
                "running", "A session cannot be closed from inside its own call: close it when generate has returned."
            )
        if os.getpid() != self._process:
            self._let_go()
            return
        with self._lock:
            self._let_go()

    def _let_go(self) -> None:
        self._guard = None
        for name in ("generate", "__reduce_ex__"):
            del vars(self.model)[name]
        self._stand_ins.detach()
        self._stand_ins = StandIns({})
        self._installation = Installation()

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
            return f"Every decode step ran eager. {self.steps.why}"
        return None

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """``model.generate`` through the candidate, or eager where the candidate does not serve this call."""
        named = self._by_name(args, kwargs)
        if os.getpid() != self._process:
            # Without the lock: the thread that held it may not exist in this process.
            return self._fall_back(_FORKED, named)
        with self._lock:
            if self._stand_ins.running is not None:
                with self._stand_ins.detached():
                    return self._fall_back(_NESTED, named)
            self.last = None
            # What an interrupt left behind in the middle of cleaning up.
            self._stand_ins.detach()
            refusal = _CLOSED if self._guard is None else self._guard.refusal()
            if refusal is not None:
                return self._fall_back(refusal, named)
            return self._serve(named) if self._installation.stepper is None else self._step(named)

    def _by_name(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments of a call, those given by position too, by their names."""
        bound = self._signature.bind_partial(*args, **kwargs).arguments
        others = bound.pop("kwargs", {})
        return {**bound, **others}

    def _serve(self, kwargs: dict[str, Any]) -> Any:
        refusal = compile_refusal(self.model, kwargs)
        if refusal is not None:
            return self._fall_back(refusal, kwargs)
        stay = self._stay()
        arguments = {**watched(kwargs, stay), **self._installation.arguments}
        with self._stand_ins.attached():
            result = self.eager(**arguments)
        self._count_call(stay.left, None)
        return result

    def _step(self, kwargs: dict[str, Any]) -> Any:
        refusal = loop_refusal(kwargs)
        if refusal is not None:
            return self._fall_back(refusal, kwargs)
        stay = self._stay()
        stepper = self._installation.stepper
        assert stepper is not None
        if given_user_code(kwargs):
            stepper = LeavingStepper(stepper, stay)
        given = any(kwargs.get(name) is not None for name in CACHE_NAMES)
        loop = DecodeLoop(stepper, kwargs.get("streamer"), keeps_cache=given)
        try:
            with self._stand_ins.attached():
                # transformers does not pass the streamer on to the hook, and would feed it the prompt before the loop had a
                # chance to refuse: the loop has it from here.
                result = self.eager(**{**kwargs, "custom_generate": loop, "streamer": None})
        except Refused as refused:
            if loop.begun:  # somebody else's, from inside a processor or a streamer
                raise
            return self._fall_back(refused.refusal, kwargs)
        self.steps.captured += loop.steps.captured
        self.steps.eager += loop.steps.eager
        self.steps.why = loop.steps.why or self.steps.why
        self._count_call(stay.left, loop.steps)
        return result

    def _stay(self) -> Stay:
        return Stay(lambda: self._guard, self._stand_ins)

    def _count_call(self, left: Refusal | None, steps: Steps | None) -> None:
        if left is not None:
            self._say(left)
            self._count_eager(left)
            return
        self.served += 1
        self.last = Call(None, steps)

    def _fall_back(self, refusal: Refusal, kwargs: dict[str, Any]) -> Any:
        self._say(refusal)
        result = self.eager(**kwargs)
        self._count_eager(refusal)
        return result

    def _say(self, refusal: Refusal) -> None:
        # Once aloud for each reason: a program may make thousands of such calls.
        _log.log(logging.DEBUG if refusal in self.fallbacks else logging.WARNING, "generate runs eager: %s", refusal.sentence)

    def _count_eager(self, refusal: Refusal) -> None:
        self.last = Call(refusal)
        self.fallbacks[refusal] += 1

    def _reduced(self, protocol: Any) -> Any:
        """How to copy or pickle the model: as it was before the installation."""
        kind: Any = type(self.model)
        constructor, arguments, state, *rest = kind.__reduce_ex__(self.model, protocol)
        ours = ("generate", "__reduce_ex__", "exactgraph")
        return constructor, arguments, {name: value for name, value in state.items() if name not in ours}, *rest
