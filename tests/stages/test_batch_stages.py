"""Batches that the protocol names, through validation and confirmation of a small model on the CPU."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from small_model import HELDOUT, LONG, REPETITIONS

from exactgraph.candidates.base import Candidate, Context, Decisions, Installation
from exactgraph.candidates.registry import candidate
from exactgraph.canonical import read_json, write_json
from exactgraph.models.cache import cache_of
from exactgraph.protocol.grades import BIT_IDENTICAL, TOKEN_IDENTICAL
from exactgraph.refusal import Refused
from exactgraph.stages import confirm
from exactgraph.stages.context import context_of
from exactgraph.stages.loaded import Loaded
from exactgraph.stages.place import Place
from exactgraph.stages.validate import _validate

Bend = Callable[[torch.Tensor], torch.Tensor]


@pytest.fixture
def batched(loaded: Loaded) -> Loaded:
    """Two prompts held out, of 4 and 3 tokens: a batch of 3 holds one of them twice."""
    return replace(loaded, protocol={**loaded.protocol, "batches": [1, 2, 3]})


def turned(logits: torch.Tensor) -> torch.Tensor:
    """The least likely token of the second sequence becomes its most likely one."""
    return torch.cat([logits[:1], -logits[1:2], logits[2:]])


def one_bit(logits: torch.Tensor) -> torch.Tensor:
    """The last bit of a logit of the second sequence, that of the least likely token."""
    bent = logits.clone()
    least = bent[1, -1].argmin()
    bent[1, -1, least] = torch.nextafter(bent[1, -1, least], torch.tensor(-torch.inf))
    return bent


class WrongPairs(Candidate):
    """Right but for batches of 2, in steps to more than ``longer_than`` tokens."""

    id = "wrong-pairs"

    def __init__(self, bend: Bend, longer_than: int = 0, claims: str = BIT_IDENTICAL) -> None:
        self.bend, self.longer_than = bend, longer_than
        self.claims = claims  # type: ignore[misc]

    def install(self, model: Any, decisions: Decisions, context: Context) -> Installation:
        own = model.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            output = own(*args, **kwargs)
            if output.logits.shape[0] == 2 and cache_of(output).get_seq_length() > self.longer_than:
                output.logits = self.bend(output.logits)
            return output

        return Installation(forwards={model: forward})


def test_a_candidate_with_lanes_serves_its_batches(batched: Loaded) -> None:
    step = candidate("step")
    plan = step.plan(batched.model, context_of(batched))
    assert [lane["batch"] for lane in plan["lanes"]] == [1, 2, 3]
    result = _validate(batched, step, plan)
    assert (result["status"], result["grade"], result["why"]) == ("exact", BIT_IDENTICAL, None)
    assert [(found["batch"], found["served"], found["why"]) for found in result["batches"]] == [
        (2, True, None),
        (3, True, None),
    ]
    for found in result["batches"]:
        assert found["candidate"] == found["eager"]
        (traces,) = found["eager"].values()
        assert [trace["prompt_tokens"] for trace in traces] == [3] * found["batch"]
        assert all(len(trace["tokens"]) == len(trace["logits"]) == len(trace["margins"]) == 6 for trace in traces)
        assert len({trace["prompt_digest"] for trace in traces}) == found["batch"], "sequences that are alike hide a mix-up"


def test_a_sequence_of_a_batch_answers_as_alone(batched: Loaded) -> None:
    """On this CPU a row of a batch chooses as it does alone, so the reference is no other prompt's answer."""
    frozen = batched.place.frozen()["sets"]["heldout"]
    pairs = _validate(batched, candidate("null"), {})["batches"][0]
    assert pairs["eager"]["heldout"][1]["tokens"] == frozen[1]["tokens"]
    assert pairs["eager"]["heldout"][1]["prompt_digest"] == frozen[1]["prompt_digest"]


@pytest.mark.parametrize("name", ["null", "C022", "C026"])
def test_batches_that_run_eager_are_recorded_and_not_rejected(batched: Loaded, name: str) -> None:
    result = _validate(batched, candidate(name), {})
    assert (result["status"], result["grade"]) == ("exact", BIT_IDENTICAL)
    for found in result["batches"]:
        assert not found["served"]
        assert found["why"] == "The candidate captures no whole steps; what it makes of a batch is compared all the same."


def test_a_stepper_without_a_lane_for_a_batch_says_so(batched: Loaded) -> None:
    plan = {"lengths": 64, "reach": 64, "lanes": [{"batch": batch, "classes": [[1, 64]]} for batch in (1, 3)]}
    result = _validate(batched, candidate("step"), plan)
    assert result["status"] == "exact"
    pairs, triples = result["batches"]
    assert (pairs["served"], pairs["why"]) == (False, "Steps are captured for batches of 1, 3; this call has 2 sequences.")
    assert (triples["served"], triples["why"]) == (True, None)


@pytest.mark.parametrize(
    ("bend", "words", "grade"),
    [
        (turned, r"First other token at prompt heldout/1 \(sequence 1 of a batch of 2\), step 0: \d+ instead of \d+", None),
        (
            one_bit,
            r"First logits with other bits at prompt heldout/1 \(sequence 1 of a batch of 2\), step 0 .*claims equal bits",
            TOKEN_IDENTICAL,
        ),
    ],
)
def test_a_difference_in_one_batch_alone_rejects(batched: Loaded, bend: Bend, words: str, grade: str | None) -> None:
    result = _validate(batched, WrongPairs(bend), {})
    assert (result["status"], result["grade"]) == ("rejected", grade)
    assert re.match(words, result["why"])
    # One prompt at a time it is exact, in every repetition.
    assert result["comparison"]["matches"] == result["comparison"]["of"] == REPETITIONS * len(HELDOUT)
    assert result["comparison"]["first_logits_difference"] is None
    triples = result["batches"][1]
    assert triples["candidate"] == triples["eager"]


def test_where_batches_are_not_asked_the_difference_stays_unseen(loaded: Loaded) -> None:
    result = _validate(loaded, WrongPairs(turned), {})
    assert result["status"] == "exact"
    assert "batches" not in result


def test_a_claim_of_equal_tokens_is_held_to_tokens_in_a_batch_too(batched: Loaded) -> None:
    result = _validate(batched, WrongPairs(one_bit, claims=TOKEN_IDENTICAL), {})
    assert (result["status"], result["grade"]) == ("exact", TOKEN_IDENTICAL)
    assert _validate(batched, WrongPairs(turned, claims=TOKEN_IDENTICAL), {})["status"] == "rejected"


def test_what_is_rejected_on_one_prompt_is_not_asked_in_batches(batched: Loaded) -> None:
    result = _validate(batched, candidate("wrong-ulp"), {})
    assert result["status"] == "rejected"
    assert "batches" not in result


def attempt(loaded: Loaded, chosen: Candidate, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """One confirmation, in this process, of what would be fresh."""

    @contextmanager
    def opened(place: Place) -> Iterator[Loaded]:
        yield loaded

    monkeypatch.setattr(confirm, "open_model", opened)
    monkeypatch.setattr(confirm, "candidate", lambda name: chosen)
    folder = loaded.place.folder
    write_json(loaded.place.plan_path(chosen.id), {"decisions": {}})
    confirm.run_one(folder, chosen.id, folder / "attempt.json")
    found: dict[str, Any] = read_json(folder / "attempt.json")
    return found


def test_confirmation_catches_what_validation_is_too_short_for(batched: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    late = WrongPairs(turned, longer_than=max(question.final_length for question in HELDOUT))
    assert _validate(batched, late, {})["status"] == "exact"
    found = attempt(batched, late, monkeypatch)
    assert (found["status"], found["grade"]) == ("mismatch", None)
    # The first step to more than 9 tokens, of a prompt of 2.
    name = "long/0 (sequence 1 of a batch of 2)"
    assert (found["difference"]["prompt"], found["difference"]["step"]) == (name, 8)
    assert found["why"].startswith(f"First other token at prompt {name}, step 8: ")
    assert found["comparison"]["matches"] == found["comparison"]["of"] == len(HELDOUT) + len(LONG)
    monkeypatch.setattr(confirm, "attempt_fresh", lambda folder, name: found)
    with pytest.raises(Refused, match="sequence 1 of a batch of 2") as caught:
        confirm.traces_fresh(Path(), late.id)
    assert caught.value.refusal.reason == "batch-differs"


def test_a_confirmed_candidate_was_asked_every_set_in_every_batch(batched: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    found = attempt(batched, candidate("null"), monkeypatch)
    assert (found["status"], found["grade"], found["difference"]) == ("matched", BIT_IDENTICAL, None)
    assert [(record["batch"], sorted(record["eager"])) for record in found["batches"]] == [
        (2, ["heldout", "long"]),
        (3, ["heldout", "long"]),
    ]


def test_without_other_batches_nothing_is_recorded_of_any(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    found = attempt(loaded, candidate("null"), monkeypatch)
    assert found["status"] == "matched"
    assert "batches" not in found


def test_a_candidate_that_served_no_call_is_not_confirmed(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal answers, but eager's own."""
    loaded.model.generation_config.cache_implementation = "static"
    found = attempt(loaded, candidate("null"), monkeypatch)
    assert (found["status"], found["sets"]) == ("failed", {})
    assert "A cache of fixed size" in found["why"]
