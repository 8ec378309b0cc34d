"""What validation does with a candidate, on a small model and the CPU."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from exactgraph.candidates.base import Candidate, Context, Decisions, Installation
from exactgraph.candidates.registry import candidate
from exactgraph.canonical import write_json
from exactgraph.environment.gpulock import Hold
from exactgraph.protocol.grades import TOKEN_IDENTICAL
from exactgraph.protocol.questions import Question
from exactgraph.protocol.trace import record_sets
from exactgraph.stages.loaded import Loaded
from exactgraph.stages.place import Place
from exactgraph.stages.validate import _validate

CPU = torch.device("cpu")
REPETITIONS = 3
HELDOUT = [Question("heldout/0", (0, 7, 9, 30), 6), Question("heldout/1", (0, 21, 4), 6)]
LONG = [Question("long/0", (0, 3), 20)]


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


@pytest.fixture
def loaded(tmp_path: Path) -> Loaded:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=64,
        initializer_range=0.3,
    )
    model = LlamaForCausalLM(config).eval()
    model.generation_config.eos_token_id = None
    questions = {"heldout": HELDOUT, "long": LONG}
    sets = record_sets(model.generate, questions, CPU, lambda name: None)
    write_json(tmp_path / "frozen.json", {"status": "frozen", "attention": "default", "sets": sets})
    protocol = {"rehearsal": True, "repetitions": REPETITIONS, "warmups": 0, "step_lengths": 64}
    hold = Hold(None, None)
    return Loaded(Place(tmp_path), model, None, questions, protocol, {}, {}, CPU, hold, time.time())


@pytest.mark.parametrize("name", ["null", "C022", "C026", "step"])
def test_an_exact_candidate_is_compared_in_every_repetition(loaded: Loaded, name: str) -> None:
    result = _validate(loaded, candidate(name), {"lengths": 64, "capacity": 64})
    assert (result["status"], result["grade"]) == ("exact", "bit-identical")
    assert result["comparison"]["matches"] == result["comparison"]["of"] == REPETITIONS * len(HELDOUT)
    assert result.get("timing") is None, "a rehearsal is never timed"


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
    result = _validate(loaded, candidate("step"), {"lengths": 0, "capacity": 64})
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
    moved = replace(loaded, protocol={**loaded.protocol, "rehearsal": False})
    real = Repetitions.paired

    def eager_moves(self: Repetitions, eager: Any, *others: Any) -> None:
        real(self, lambda inputs, **kwargs: torch.cat([inputs, torch.zeros(1, kwargs["max_new_tokens"]).long()], 1), *others)

    monkeypatch.setattr(Repetitions, "paired", eager_moves)
    result = _validate(moved, candidate("null"), {})
    assert result["status"] == "baseline-moved"
