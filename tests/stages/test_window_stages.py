"""What the protocol asks about windows, through validation and confirmation of a small Whisper on the CPU."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from small_whisper import LENGTHS, make_heard

from exactgraph.candidates.base import Candidate, Context, Decisions, Installation
from exactgraph.candidates.registry import candidate
from exactgraph.canonical import read_json, write_json
from exactgraph.protocol.window_ways import decide, equal, grade, summary
from exactgraph.refusal import Refused
from exactgraph.runtime import precompute
from exactgraph.runtime.session import Session
from exactgraph.stages import confirm
from exactgraph.stages.context import context_of
from exactgraph.stages.loaded import Loaded
from exactgraph.stages.place import Place
from exactgraph.stages.validate import _validate
from exactgraph.stages.windows import AskedWindows

WINDOWS = {"encoder_batch": 3, "device_mib": 1, "parallel": 2}


class Eager(Candidate):
    """Eager itself, but no control: windows are asked of what may be confirmed."""

    id = "eager"

    def install(self, model: Any, decisions: Decisions, context: Context) -> Installation:
        return Installation()


class WrongPairs(Eager):
    """Right but for two rows at a time."""

    id = "wrong-pairs"

    def install(self, model: Any, decisions: Decisions, context: Context) -> Installation:
        own = model.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            output = own(*args, **kwargs)
            if output.logits.shape[0] == 2:
                output.logits = -output.logits
            return output

        return Installation(forwards={model: forward})


@pytest.fixture
def heard(tmp_path: Path) -> Loaded:
    found = make_heard(tmp_path)
    return replace(found, protocol={**found.protocol, "windows": WINDOWS})


def attempt(loaded: Loaded, chosen: Candidate, plan: Decisions, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """One confirmation, in this process, of what would be fresh."""

    @contextmanager
    def opened(place: Place) -> Iterator[Loaded]:
        yield loaded

    monkeypatch.setattr(confirm, "open_model", opened)
    monkeypatch.setattr(confirm, "candidate", lambda name: chosen)
    write_json(loaded.place.plan_path(chosen.id), {"decisions": plan})
    confirm.run_one(loaded.place.folder, chosen.id, loaded.place.folder / "attempt.json")
    found: dict[str, Any] = read_json(loaded.place.folder / "attempt.json")
    return found


def test_each_way_and_mode_is_held_against_eager(heard: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    step = candidate("encdec-step")
    plan = step.plan(heard.model, context_of(heard))
    result = _validate(heard, step, plan)
    assert (result["status"], result["grade"]) == ("exact", "bit-identical")
    validated = result["windows"]
    found = validated["sets"]["heldout"]
    frozen = heard.place.frozen()["sets"]["heldout"][0]
    # One window was frozen; two more are the same one, turned.
    assert found["windows"][0] == {"id": "heldout/0", "digest": frozen["prompt_digest"]}
    assert found["windows"][1]["id"] == "heldout/0 (turned by 1 of 3 parts)"
    assert len({window["digest"] for window in found["windows"]}) == len({*found["states"]["eager"]}) == 3
    assert found["expected"][0] == frozen["tokens"]
    assert found["states"]["captured"] == found["states"]["eager"]
    assert found["tokens"]["eager"]["sequential"] == found["expected"]
    assert validated["not_captured"]["parallel"] == "Steps are captured for batches of 1; this call has 2 sequences."
    assert "sequential" not in validated["not_captured"]
    assert (validated["refused"], validated["seconds"]) == ({}, None)
    confirmed = attempt(heard, step, plan, monkeypatch)
    assert confirmed["status"] == "matched"
    attempted = confirmed["windows"]
    # Validation saw the others.
    assert list(attempted["sets"]) == ["long"]
    assert {len(tokens) for tokens in attempted["sets"]["long"]["expected"]} == {LENGTHS["long"]}
    assert grade(attempted, "captured") == "bit-identical"
    decision = decide(WINDOWS, validated, attempted)
    assert decision["encoder"] in ("captured", "batched")
    assert decision["grade"] is not None


def test_nothing_is_asked_of_controls_of_what_is_rejected_and_where_the_protocol_asks_nothing(
    heard: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "windows" not in _validate(heard, candidate("null"), {})
    assert "windows" not in _validate(heard, candidate("wrong-ulp"), {})
    plain = replace(heard, protocol={name: value for name, value in heard.protocol.items() if name != "windows"})
    assert "windows" not in _validate(plain, Eager(), {})
    assert "windows" not in attempt(plain, Eager(), {}, monkeypatch)


def test_other_tokens_in_one_call_keep_windows_apart(heard: Loaded) -> None:
    result = _validate(heard, WrongPairs(), {})
    assert result["status"] == "exact"
    record = result["windows"]
    assert equal(record, "eager", "sequential") == (3, 3)
    # The first two go in one call; the third is left over and goes alone.
    assert equal(record, "eager", "parallel") == (1, 3)
    assert record["not_captured"] == dict.fromkeys(("sequential", "parallel"), "The candidate captures no whole steps.")
    assert decide(WINDOWS, record, record)["mode"] == "sequential"


def with_encoder(monkeypatch: pytest.MonkeyPatch, bend: Any) -> None:
    """``encode_as_generate`` as ``precompute`` calls it, with ``bend`` of what it returns."""
    own = precompute.encode_as_generate
    monkeypatch.setattr(precompute, "encode_as_generate", lambda model, inputs: bend(own(model, inputs)))


def test_an_encoder_with_other_bits_in_batches(heard: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny, large = torch.tensor(1e-6), torch.tensor(3.0)
    for amount, expected in ((tiny, "token-identical"), (large, None)):
        with monkeypatch.context() as patch:
            with_encoder(patch, lambda states, amount=amount: states + amount * (len(states) == 3))
            record = _validate(heard, Eager(), {})["windows"]
        assert set(record["sets"]["heldout"]["tokens"]) == {"eager", "batched"}
        assert grade(record, "batched") == expected
        assert decide(WINDOWS, record, record)["encoder"] == ("captured" if expected is None else "batched")
        told = summary(WINDOWS, record)["encoder"]["batched"]
        assert (told["states_equal"], told["tokens_equal"]["sequential"] == 3) == (0, expected is not None)


def test_what_cannot_run_is_refused_by_name(heard: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(states: torch.Tensor) -> torch.Tensor:
        if len(states) == 3:
            raise torch.OutOfMemoryError("CUDA out of memory.\nMuch more")
        return states

    def refuse(self: Any, inputs: Any) -> Any:
        raise Refused("capture-failed", "It waits for the host.")

    with_encoder(monkeypatch, full)
    monkeypatch.setattr(precompute.CapturedEncoder, "__call__", refuse)
    record = _validate(heard, Eager(), {})["windows"]
    assert record["refused"] == {"captured": "It waits for the host.", "batched": "CUDA out of memory."}
    assert list(record["sets"]["heldout"]["states"]) == ["eager"]
    assert decide(WINDOWS, record, record)["encoder"] == "eager"


def test_seconds_are_of_what_was_compared_and_gave_the_same_again(heard: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    with Session(heard.model, Eager(), {}, context_of(heard), "default") as session:
        asked = AskedWindows(session, {"heldout": heard.questions["heldout"]}, heard.protocol, "default")
        with_encoder(monkeypatch, lambda states: states + 1e-6 * (len(states) == 3))
        asked.time(2)
    record = asked.record
    assert record["refused"] == {"batched": "A repetition did not give what came before."}
    assert "batched" not in record["sets"]["heldout"]["states"]
    assert {run: len(taken) for run, taken in record["seconds"].items()} == dict.fromkeys(
        ("eager", "captured", "sequential", "parallel"), 2
    )
    assert all(second > 0 for taken in record["seconds"].values() for second in taken)


def test_windows_that_move_between_repetitions_are_a_failure(heard: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    with Session(heard.model, Eager(), {}, context_of(heard), "default") as session:
        asked = AskedWindows(session, {"heldout": heard.questions["heldout"]}, heard.protocol, "default")
        with_encoder(monkeypatch, lambda states: states + 1e-6)
        with pytest.raises(RuntimeError, match=r"Windows one at a time \(eager\): A repetition did not give"):
            asked.time(1)


def test_a_confirmation_run_again_has_to_decide_the_same(heard: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen, folder = Eager(), heard.place.folder
    validated = _validate(heard, chosen, {})
    found = attempt(heard, chosen, {}, monkeypatch)
    write_json(folder / "protocol.json", heard.protocol)
    write_json(heard.place.validation_path(chosen.id), validated)
    write_json(folder / "confirmation.json", {"attempts": [found]})
    again = copy.deepcopy(found)
    monkeypatch.setattr(confirm, "attempt_fresh", lambda folder, name: again)
    assert confirm.traces_fresh(folder, chosen.id) == found["sets"]
    for tokens in again["windows"]["sets"]["long"]["tokens"].values():
        tokens["parallel"][0][-1] += 1
    with pytest.raises(Refused, match=r"Windows ahead of decoding were .*'parallel'.* and are .*'sequential'") as caught:
        confirm.traces_fresh(folder, chosen.id)
    assert caught.value.refusal.reason == "windows-differ"


def test_batches_of_one_are_not_compared(heard: Loaded) -> None:
    alone = {"encoder_batch": 1, "device_mib": 0, "parallel": 1}
    record = _validate(replace(heard, protocol={**heard.protocol, "windows": alone}), Eager(), {})["windows"]
    found = record["sets"]["heldout"]
    assert (set(found["states"]), set(found["tokens"]["eager"])) == ({"eager", "captured"}, {"sequential"})
    assert decide(alone, record, record) == {"encoder": "captured", "grade": "bit-identical", "mode": "sequential"}
