"""Windows of a speech model, encoded ahead of decoding and decoded several at a time, beside eager: evidence for a default.

Nothing here rejects a candidate: it was exact before, and what is not exact here is not used.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from exactgraph.progress import Progress
from exactgraph.protocol.questions import Questions
from exactgraph.protocol.window_ways import EAGER, SEQUENTIAL, Record, asked_of, modes, same_states, ways
from exactgraph.refusal import Refused
from exactgraph.runtime.precompute import Precomputed
from exactgraph.runtime.session import Session
from exactgraph.stages.window_runs import WindowRuns, digests


class AskedWindows:
    """What a candidate that ``session`` installed makes of windows of the sets ``asked``; ``record`` is the evidence.

    A way or a mode that cannot run is refused in the record, with the reason. Raises ``RuntimeError`` where not even one
    window at a time can.
    """

    def __init__(self, session: Session, asked: Questions, protocol: dict[str, Any], attention: str) -> None:
        limits = asked_of(protocol)
        assert limits is not None
        self._ways, self._modes = ways(limits), modes(limits)
        self._device: torch.device = session.model.device
        self._runs = WindowRuns(session, asked, limits, attention)
        self._states: dict[str, dict[str, Precomputed]] = {}
        self._refused: dict[str, str] = {}
        self._not_captured: dict[str, str] = {}
        self._sets: dict[str, dict[str, Any]] = {}
        self.record: Record = {
            "sets": self._sets,
            "refused": self._refused,
            "not_captured": self._not_captured,
            "seconds": None,
        }
        self._ask()

    def time(self, repetitions: int) -> None:
        """Take the seconds of each way and mode for all windows of the only set, in turn; the caller has the device alone.

        What was compared ran just before, so nothing here is a first call. What does not give the same again is refused.
        """
        ((name, found),) = self._sets.items()
        outputs = self._states[EAGER][name]
        runs: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
            **{way: (partial(self._runs.encode, way, name), digests) for way in self._ways},
            **{mode: (partial(self._runs.decode, mode, name, outputs), lambda answer: answer[0]) for mode in self._modes},
        }
        before = {**found["states"], **found["tokens"][EAGER]}
        seconds: dict[str, list[float]] = {run: [] for run in runs if run not in self._refused}
        for _ in range(repetitions):
            for run in list(seconds):
                work, told = runs[run]
                self._wait()
                started = time.perf_counter()
                got = work()
                self._wait()
                seconds[run].append(time.perf_counter() - started)
                if told(got) != before[run]:
                    self._refuse(run, "A repetition did not give what came before.")
                    del seconds[run]
        self.record["seconds"] = seconds

    def _ask(self) -> None:
        with Progress("windows, eager", len(self._runs.sets)) as progress:
            for name, windows in self._runs.sets.items():
                told = [{"id": window.id, "digest": window.digest} for window in windows]
                self._sets[name] = {"windows": told, "expected": self._runs.eager(name), "states": {}, "tokens": {}}
                progress.step(name)
        for way in self._ways:
            self._attempt(way, partial(self._encode, way))
        for way in self._states:
            if way == EAGER or not same_states(self.record, way):
                for found in self._sets.values():
                    found["tokens"][way] = {}
                for mode in self._modes:
                    self._attempt(mode, partial(self._decode, way, mode))
        # Only these are needed for timing.
        self._states = {EAGER: self._states[EAGER]}

    def _encode(self, way: str) -> None:
        outputs = {name: self._runs.encode(way, name) for name in self._sets}
        for name, found in self._sets.items():
            found["states"][way] = digests(outputs[name])
        self._states[way] = outputs

    def _decode(self, way: str, mode: str) -> None:
        for name, found in self._sets.items():
            found["tokens"][way][mode], why = self._runs.decode(mode, name, self._states[way][name])
            if why:
                self._not_captured[mode] = why

    def _attempt(self, run: str, work: Callable[[], None]) -> None:
        if run in self._refused:
            return
        try:
            work()
        except (Refused, RuntimeError) as error:
            self._refuse(run, str(error).partition("\n")[0] or type(error).__name__)

    def _refuse(self, run: str, sentence: str) -> None:
        """``run``, a way or a mode, is none; nothing stays of it but why."""
        if run in (EAGER, SEQUENTIAL):
            raise RuntimeError(f"Windows one at a time ({run}): {sentence}")
        self._refused[run] = sentence
        self._not_captured.pop(run, None)
        for found in self._sets.values():
            for kept in (found["states"], found["tokens"], *found["tokens"].values()):
                kept.pop(run, None)

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
