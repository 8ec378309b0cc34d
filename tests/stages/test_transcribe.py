"""A speech model through the stages: the same acceptance, with windows in place of prompts."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_whisper import CPU, make_heard

from exactgraph.candidates.registry import candidate
from exactgraph.canonical import read_json
from exactgraph.protocol.trace import record_sets
from exactgraph.refusal import Refused, UserError
from exactgraph.stages.context import context_of
from exactgraph.stages.loaded import Loaded, _check_task
from exactgraph.stages.profile import _profile
from exactgraph.stages.validate import _validate


@pytest.fixture
def heard(tmp_path: Path) -> Loaded:
    return make_heard(tmp_path)


def test_eager_itself_is_exact(heard: Loaded) -> None:
    result = _validate(heard, candidate("null"), {})
    assert (result["status"], result["grade"]) == ("exact", "bit-identical")
    assert (result["comparison"]["matches"], result["comparison"]["logits_equal"]) == (2, 8)


def test_one_rounding_is_seen(heard: Loaded) -> None:
    result = _validate(heard, candidate("wrong-ulp"), {})
    assert result["status"] == "rejected"
    assert result["comparison"]["first_logits_difference"]["step"] == 0


def test_a_late_fault_passes_validation_and_is_caught_at_confirmation(heard: Loaded) -> None:
    from exactgraph.protocol.compare import compare_sets
    from exactgraph.runtime.session import Session

    control = candidate("wrong-late")
    assert _validate(heard, control, {})["status"] == "exact"
    with Session(heard.model, control, {}, context_of(heard), "default") as session:
        found = record_sets(session.generate, heard.questions, CPU, lambda name: None)
    comparison = compare_sets(read_json(heard.place.folder / "frozen.json")["sets"], found)
    difference = comparison["first_logits_difference"]
    # Validation saw 8 tokens: the one that the decoder begins with, and 7 of 8 new ones.
    assert difference is not None
    assert (difference["prompt"], difference["step"]) == ("long/0", 8)


@pytest.mark.parametrize(
    ("name", "reason"), [("step", "encoder-decoder"), ("C022", "unknown-layout"), ("C026", "unknown-layout")]
)
def test_what_knows_decoders_alone_refuses_by_name(heard: Loaded, name: str, reason: str) -> None:
    with pytest.raises(Refused) as refused:
        candidate(name).plan(heard.model, context_of(heard))
    assert refused.value.refusal.reason == reason


def test_a_step_is_profiled(heard: Loaded) -> None:
    result = _profile(heard, ["step", "C022"])
    assert (result["status"], result["prompt"], result["steps"]) == ("profiled", "heldout/0", 4)
    shares = {kind: found["share"] for kind, found in result["kinds"].items()}
    assert sum(shares.values()) == pytest.approx(1)
    assert min(shares[kind] for kind in ("projection", "attention", "norm", "cache", "head", "sampling")) > 0


def test_a_task_that_the_model_is_not_for_is_refused() -> None:
    speech, text = {"source": "path:/w", "prompts": "windows"}, {"source": "path:/t", "prompts": "text"}
    _check_task({"task": "transcribe"}, speech)
    _check_task({}, text)
    with pytest.raises(UserError, match=r"path:/w is a speech model: write {source: 'path:/w', task: transcribe}"):
        _check_task({}, speech)
    with pytest.raises(UserError, match=r"path:/t is no speech model that is known here"):
        _check_task({"task": "transcribe"}, text)
