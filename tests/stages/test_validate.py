"""What validation does with a candidate, on a small model and the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from small_model import HELDOUT, REPETITIONS

from exactgraph.candidates.base import Candidate, Context, Decisions, Installation
from exactgraph.candidates.registry import candidate
from exactgraph.environment.gpulock import Hold
from exactgraph.protocol.grades import TOKEN_IDENTICAL
from exactgraph.protocol.questions import Question
from exactgraph.stages.loaded import Loaded
from exactgraph.stages.validate import _validate


class Swaps(Candidate):
    """Turns every logit round: the least likely token becomes the most likely one."""

    id = "swaps"
    claims = TOKEN_IDENTICAL

    def install(self, model: Any, decisions: Decisions, context: Context) -> Installation:
        head = model.get_output_embeddings()
        forward = head.forward
        return Installation(forwards={head: lambda hidden: -forward(hidden)})


class Dies(Candidate):
    id = "dies"

    def install(self, model: Any, decisions: Decisions, context: Context) -> Installation:
        raise ZeroDivisionError("in the candidate")


@pytest.mark.parametrize("name", ["null", "C022", "C026", "step"])
def test_an_exact_candidate_is_compared_in_every_repetition(loaded: Loaded, name: str) -> None:
    result = _validate(loaded, candidate(name), {"lengths": 64, "reach": 64, "lanes": [{"batch": 1, "classes": [[1, 64]]}]})
    assert (result["status"], result["grade"]) == ("exact", "bit-identical")
    assert result["comparison"]["matches"] == result["comparison"]["of"] == REPETITIONS * len(HELDOUT)
    assert result.get("timing") is None, "a rehearsal is never timed"


class Watched(Hold):
    """A GPU's hold that knows whether it is held alone now."""

    def __init__(self) -> None:
        super().__init__(None, None)
        self.is_alone = False

    @contextmanager
    def alone(self) -> Iterator[None]:
        self.is_alone = True
        yield
        self.is_alone = False


def test_only_what_is_timed_has_the_gpu_alone(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    from exactgraph.protocol import timing
    from exactgraph.stages import validate

    hold = Watched()
    calls: list[tuple[str, bool]] = []
    real = timing.ask

    def ask(generate: Any, question: Question, device: torch.device) -> tuple[list[int], float]:
        if question.new_tokens > 1:
            calls.append((question.id, hold.is_alone))
        return real(generate, question, device)

    def floor(loaded: Loaded) -> dict[str, Any]:
        assert hold.is_alone
        return {"copy_bandwidth_bytes_s": 1e12, "step_weight_bytes": 1}

    monkeypatch.setattr(timing, "ask", ask)
    monkeypatch.setattr(validate, "_floor", floor)
    protocol = {**loaded.protocol, "rehearsal": False, "repetitions": 3, "timed": 2, "warmups": 1}
    result = _validate(replace(loaded, protocol=protocol, hold=hold), candidate("null"), {})
    assert result["comparison"]["matches"] == result["comparison"]["of"] == 3 * len(HELDOUT)
    pairs = [(pair["prompt"], pair["repetition"]) for pair in result["timing"]["pairs"]]
    assert pairs == [(question.id, repetition) for repetition in range(2) for question in HELDOUT]
    # One untimed repetition and a warm-up of both on every prompt; then eager and the candidate, twice.
    assert [alone for _, alone in calls] == [False] * 3 * len(HELDOUT) + [True] * 2 * 2 * len(HELDOUT)
    # Without a GPU the candidate's profile fails, which decides nothing.
    assert "no work on a GPU" in result["measured"]["profile"]["failed"]


def test_of_a_rejected_candidate_the_repetitions_show_how_often_it_differs(loaded: Loaded) -> None:
    result = _validate(loaded, Swaps(), {})
    assert (result["status"], result["grade"]) == ("rejected", None)
    assert (result["comparison"]["matches"], result["comparison"]["of"]) == (0, REPETITIONS * len(HELDOUT))
    assert result["comparison"]["first_token_difference"]["prompt"] == "heldout/0"
    assert "timing" not in result


def test_controls_end_with_the_recorded_pass(loaded: Loaded) -> None:
    for name, status in (("wrong-ulp", "rejected"), ("wrong-late", "exact")):
        result = _validate(loaded, candidate(name), {})
        assert result["status"] == status
        assert result["comparison"]["of"] == len(HELDOUT)


def test_a_candidate_that_served_nothing_is_refused(loaded: Loaded) -> None:
    result = _validate(loaded, candidate("step"), {"lengths": 0, "reach": 64, "lanes": [{"batch": 1, "classes": []}]})
    assert result["status"] == "refused"
    assert "ran eager" in result["why"]


def test_whatever_a_candidate_dies_of_is_a_result(loaded: Loaded) -> None:
    assert _validate(loaded, Dies(), {}) == {"status": "failed", "why": "ZeroDivisionError: in the candidate"}


def test_eager_that_left_its_baseline_is_told_from_a_candidate_that_differs(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    from exactgraph.protocol.timing import Repetitions
    from exactgraph.stages import validate

    monkeypatch.setattr(validate, "_floor", lambda loaded: {})
    moved = replace(loaded, protocol={**loaded.protocol, "rehearsal": False, "timed": 1})
    real = Repetitions.paired

    def eager_moves(self: Repetitions, eager: Any, *others: Any) -> None:
        real(self, lambda inputs, **kwargs: torch.cat([inputs, torch.zeros(1, kwargs["max_new_tokens"]).long()], 1), *others)

    monkeypatch.setattr(Repetitions, "paired", eager_moves)
    result = _validate(moved, candidate("null"), {})
    assert result["status"] == "baseline-moved"
