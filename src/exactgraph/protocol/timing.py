"""Timing eager and a candidate in one process, alternating, so that a ratio holds on a noisy host.

Every timed run's token IDs are compared with the baseline's; a figure without a comparison does not exist.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from exactgraph.protocol.compare import Comparison, Difference, first_tokens, token_difference
from exactgraph.protocol.questions import Question
from exactgraph.protocol.trace import Generate, Trace, greedy

CONFIDENCE = 0.99
RESAMPLES = 10_000


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def ask(generate: Generate, question: Question, device: torch.device) -> tuple[list[int], float]:
    """Generated token IDs and the seconds that ``generate`` took, prompt included."""
    arguments = greedy(question, device)
    synchronise(device)
    started = time.perf_counter()
    output = generate(**arguments)
    synchronise(device)
    seconds = time.perf_counter() - started
    return question.answer(output), seconds


class Repetitions:
    """Repeated runs of the questions: counts of runs that equal the baseline, and the pairs of times."""

    def __init__(self, expected: list[Trace], device: torch.device) -> None:
        self._expected = {trace["prompt"]: trace for trace in expected}
        self._device = device
        self.matches = 0
        self.of = 0
        self.difference: Difference | None = None
        self.pairs: list[dict[str, Any]] = []

    def compare(self, question: Question, tokens: list[int]) -> None:
        """Count one candidate run."""
        difference = self._difference(question, tokens)
        self.of += 1
        if difference is None:
            self.matches += 1
        elif self.difference is None:
            self.difference = difference

    def compare_short(self, question: Question, tokens: list[int]) -> None:
        """A candidate's run that generated fewer tokens than asked: not counted, but a difference in it is one."""
        self.difference = self.difference or token_difference(first_tokens(self._expected[question.id], len(tokens)), tokens)

    def counted(self, recorded: Comparison) -> Comparison:
        """``recorded`` with the counts of answers of these repetitions; logits stay those of the recorded pass."""
        return {
            **recorded,
            "matches": self.matches,
            "of": self.of,
            "first_token_difference": recorded["first_token_difference"] or self.difference,
        }

    def untimed(self, candidate: Generate, asked: list[Question], repetitions: int) -> None:
        """Run the candidate alone and compare."""
        for _ in range(repetitions):
            for question in asked:
                self.compare(question, ask(candidate, question, self._device)[0])

    def warm_up(self, eager: Generate, candidate: Generate, asked: list[Question], warmups: int) -> None:
        """Run both on every question and keep nothing of it, so that what only a first call does is not timed.

        Every question, because a first call may be one of its length: cuDNN plans attention anew for each. A candidate that
        replays would leave its eager cold.
        """
        for _ in range(warmups):
            for question in asked:
                for generate in (eager, candidate):
                    ask(generate, question, self._device)

    def paired(self, eager: Generate, candidate: Generate, asked: list[Question], repetitions: int) -> None:
        """Run eager and candidate in turn, the order of each pair the other way round than the last."""
        for repetition in range(repetitions):
            for index, question in enumerate(asked):
                order = "ec" if (repetition + index) % 2 == 0 else "ce"
                pair: dict[str, Any] = {"prompt": question.id, "repetition": repetition, "order": order}
                for turn in order:
                    name, generate = ("eager", eager) if turn == "e" else ("candidate", candidate)
                    tokens, pair[f"{name}_s"] = ask(generate, question, self._device)
                    first, pair[f"{name}_first_s"] = ask(generate, replace(question, new_tokens=1), self._device)
                    if first != tokens[:1]:
                        tokens = first  # the answer with the difference is the one to compare
                    if turn == "c":
                        self.compare(question, tokens)
                    else:
                        self._check_eager(question, tokens)
                    pair["tokens"] = len(tokens)
                self.pairs.append(pair)

    def _check_eager(self, question: Question, tokens: list[int]) -> None:
        difference = self._difference(question, tokens)
        if difference is not None:
            raise EagerMoved(difference)

    def _difference(self, question: Question, tokens: list[int]) -> Difference | None:
        return token_difference(self._expected[question.id], tokens)


class EagerMoved(Exception):
    """Eager did not reproduce its own frozen baseline: nothing can be compared with it."""

    def __init__(self, difference: Difference) -> None:
        super().__init__(f"eager left its own baseline at {difference['prompt']}, step {difference['step']}")
        self.difference = difference


def summarise(pairs: list[dict[str, Any]]) -> dict[str, Any]:
    """Figures from paired runs.

    ``ratio``: geometric mean of eager's time over the candidate's, whole calls. ``interval``: its percentile bootstrap
    interval at ``CONFIDENCE``, resampling pairs with a fixed seed. ``faster``: the interval's lower end is above 1.
    ``eager_tok_s`` and ``candidate_tok_s``: decode tokens a second, (tokens - 1) over (time of the call - time of a call that
    generates one token), pooled over all pairs.
    """
    ratios = np.log([pair["eager_s"] / pair["candidate_s"] for pair in pairs])
    draws = np.random.default_rng(0).integers(0, len(ratios), size=(RESAMPLES, len(ratios)))
    tail = (1 - CONFIDENCE) / 2
    low, high = np.exp(np.quantile(ratios[draws].mean(axis=1), [tail, 1 - tail]))
    return {
        "pairs": pairs,
        "ratio": float(np.exp(ratios.mean())),
        "interval": [float(low), float(high)],
        "confidence": CONFIDENCE,
        "faster": bool(low > 1),
        "eager_tok_s": _decode_rate(pairs, "eager"),
        "candidate_tok_s": _decode_rate(pairs, "candidate"),
    }


def _decode_rate(pairs: list[dict[str, Any]], who: str) -> float:
    tokens: int = sum(pair["tokens"] - 1 for pair in pairs)
    seconds: float = sum(pair[f"{who}_s"] - pair[f"{who}_first_s"] for pair in pairs)
    return tokens / seconds
