"""Figures from paired runs, and the comparison of every timed run."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from trace_makers import pair, trace

from exactgraph.protocol.questions import Question
from exactgraph.protocol.timing import EagerMoved, Repetitions, summarise

CPU = torch.device("cpu")
ASKED = [Question("heldout/0", (2, 3, 4, 5), 3), Question("heldout/1", (6, 7), 3)]
ANSWERS = {(2, 3, 4, 5): [10, 11, 12], (6, 7): [20, 21, 22]}
EXPECTED = [trace("heldout/0", ANSWERS[2, 3, 4, 5]), trace("heldout/1", ANSWERS[6, 7])]


class Fake:
    """A ``generate`` that answers from a table. ``wrong_at``: the calls for whole answers, counted from 0, that go wrong."""

    def __init__(self, log: list[str], name: str, wrong_at: tuple[int, ...] = ()) -> None:
        self._log, self._name, self._wrong_at, self._calls = log, name, wrong_at, 0

    def __call__(self, inputs: torch.Tensor, max_new_tokens: int, **arguments: Any) -> torch.Tensor:
        assert arguments["do_sample"] is False
        assert torch.equal(arguments["attention_mask"], torch.ones_like(inputs))
        answer = list(ANSWERS[tuple(inputs[0].tolist())])[:max_new_tokens]
        if max_new_tokens > 1:
            self._log.append(self._name)
            if self._calls in self._wrong_at:
                answer[1] = 99
            self._calls += 1
        return torch.cat([inputs, torch.tensor([answer])], dim=1)


def test_known_ratios() -> None:
    figures = summarise([pair(2.0, 1.0), pair(8.0, 1.0)])
    assert figures["ratio"] == pytest.approx(4.0)
    low, high = figures["interval"]
    assert (low, high) == (pytest.approx(2.0), pytest.approx(8.0))


def test_the_interval_contains_the_ratio_and_narrows_with_pairs() -> None:
    few = [pair(1.0 + 0.1 * (i % 5), 0.5) for i in range(5)]
    widths = []
    for pairs in (few, few * 20):
        figures = summarise(pairs)
        low, high = figures["interval"]
        assert low < figures["ratio"] < high
        widths.append(math.log(high / low))
    assert widths[1] < widths[0] / 3


def test_figures_are_the_same_every_time() -> None:
    pairs = [pair(1.0 + 0.1 * i, 0.9) for i in range(7)]
    assert summarise(pairs) == summarise(pairs)


@pytest.mark.parametrize(
    ("pairs", "faster"),
    [
        ([pair(1.1, 1.0), pair(1.2, 1.0)], True),
        # On average faster, but not at the lower end.
        ([pair(4.0, 1.0), pair(0.5, 1.0)], False),
        ([pair(1.0, 1.0)] * 30, False),
        ([pair(0.9, 1.0)] * 30, False),
    ],
)
def test_faster_only_where_the_lower_end_is_above_one(pairs: list[dict[str, Any]], faster: bool) -> None:
    figures = summarise(pairs)
    assert figures["faster"] is faster
    assert (figures["interval"][0] > 1) is faster


def test_the_decode_rate_leaves_the_prompt_out_and_is_pooled() -> None:
    figures = summarise([pair(1.5, 0.6, first=0.5, tokens=11), pair(4.5, 2.5, first=0.5, tokens=21)])
    assert figures["eager_tok_s"] == pytest.approx(30 / 5)
    assert figures["candidate_tok_s"] == pytest.approx(30 / 2.1)


def test_every_run_is_compared_and_the_first_difference_kept() -> None:
    log: list[str] = []
    repetitions = Repetitions(EXPECTED, CPU)
    repetitions.untimed(Fake(log, "c", wrong_at=(3, 4)), ASKED, 3)
    assert (repetitions.matches, repetitions.of) == (4, 6)
    assert repetitions.difference is not None
    assert (repetitions.difference["prompt"], repetitions.difference["step"]) == ("heldout/1", 1)
    assert repetitions.pairs == []


def test_pairs_alternate_and_compare_the_candidate() -> None:
    log: list[str] = []
    repetitions = Repetitions(EXPECTED, CPU)
    repetitions.paired(Fake(log, "e"), Fake(log, "c", wrong_at=(1,)), ASKED, 2)
    assert "".join(log) == "ec" + "ce" + "ce" + "ec"
    assert [found["order"] for found in repetitions.pairs] == ["ec", "ce", "ce", "ec"]
    assert (repetitions.matches, repetitions.of) == (3, 4)
    assert repetitions.difference is not None
    assert repetitions.difference["got"] == 99
    for found in repetitions.pairs:
        assert found["tokens"] == 3
        assert min(found[f"{who}_{what}"] for who in ("eager", "candidate") for what in ("s", "first_s")) > 0


def test_warm_ups_are_run_and_not_counted() -> None:
    log: list[str] = []
    repetitions = Repetitions(EXPECTED, CPU)
    repetitions.warm_up(Fake(log, "e"), Fake(log, "c", wrong_at=(0, 1)), ASKED, 2)
    assert "".join(log) == "ecec" * len(ASKED)
    assert (repetitions.matches, repetitions.of, repetitions.pairs) == (0, 0, [])


def test_untimed_and_timed_runs_are_counted_together() -> None:
    repetitions = Repetitions(EXPECTED, CPU)
    repetitions.untimed(Fake([], "c", wrong_at=(0,)), ASKED, 3)
    repetitions.paired(Fake([], "e"), Fake([], "c"), ASKED, 2)
    assert (repetitions.matches, repetitions.of, len(repetitions.pairs)) == (9, 10, 4)


def test_an_eager_that_left_its_baseline_ends_the_timing() -> None:
    repetitions = Repetitions(EXPECTED, CPU)
    with pytest.raises(EagerMoved, match="eager left its own baseline at heldout/1, step 1") as caught:
        repetitions.paired(Fake([], "e", wrong_at=(1,)), Fake([], "c"), ASKED, 1)
    assert caught.value.difference["got"] == 99
