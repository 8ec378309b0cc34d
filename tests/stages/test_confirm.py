"""Confirmation walks down the ranking, controls first, and stops at the first match."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import key_folder
import pytest
from key_folder import sets

from exactgraph.canonical import read_json, write_json
from exactgraph.refusal import Refused, UserError
from exactgraph.stages import confirm
from exactgraph.stages.place import Place

CODE = "d" * 16


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return key_folder.make(tmp_path)


def attempt(name: str, status: str) -> dict[str, Any]:
    return {"candidate": name, "status": status, "why": "RuntimeError: broken", "sets": sets()}


def confirmed(
    place: Place, monkeypatch: pytest.MonkeyPatch, outcomes: dict[str, str], status: str | None = None, jobs: int = 1
) -> tuple[dict[str, Any], list[str]]:
    """The confirmation, and which candidates were tried, where ``outcomes`` says how each ends, in the ranking's order."""
    ranking = {
        "status": status,
        "sentence": "Exact, but not faster than eager: step.",
        "order": [] if status else list(outcomes),
        "candidates": {name: {"control": name == "wrong-late"} for name in outcomes},
    }
    write_json(place.folder / "ranking.json", ranking)
    tried: list[str] = []

    def attempt_fresh(folder: Path, name: str) -> dict[str, Any]:
        assert folder == place.folder
        tried.append(name)
        if outcomes[name] == "killed":
            raise UserError(f"{name} was killed.")
        return attempt(name, outcomes[name])

    monkeypatch.setattr(confirm, "attempt_fresh", attempt_fresh)
    confirm.run(place.folder, CODE, jobs)
    result = read_json(place.folder / "confirmation.json")
    if jobs == 1:
        assert [found["candidate"] for found in result["attempts"]] == tried
    assert (result["stage"], result["code"]) == ("confirm", CODE)
    return result, tried


def test_the_first_match_is_confirmed_and_nothing_is_tried_after_it(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    result, tried = confirmed(place, monkeypatch, {"wrong-late": "mismatch", "step": "matched", "C022": "matched"})
    assert (result["status"], result["confirmed"]) == ("confirmed", "step")
    assert tried == ["wrong-late", "step"]


@pytest.mark.parametrize("first", ["mismatch", "failed"])
def test_after_a_mismatch_the_next_is_tried(place: Place, monkeypatch: pytest.MonkeyPatch, first: str) -> None:
    result, tried = confirmed(place, monkeypatch, {"wrong-late": "mismatch", "step": first, "C022": "matched"})
    assert (result["status"], result["confirmed"]) == ("confirmed", "C022")
    assert tried == ["wrong-late", "step", "C022"]
    assert result["sentence"].startswith("C022 ")


def test_none_matches(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    result, tried = confirmed(place, monkeypatch, {"wrong-late": "mismatch", "step": "mismatch", "C022": "failed"})
    assert (result["status"], result["confirmed"]) == ("confirmation-mismatch", None)
    assert len(tried) == 3


@pytest.mark.parametrize("ended", ["matched", "failed"])
def test_a_control_that_was_not_caught_ends_everything(place: Place, monkeypatch: pytest.MonkeyPatch, ended: str) -> None:
    result, tried = confirmed(place, monkeypatch, {"wrong-late": ended, "step": "matched"})
    assert (result["status"], result["confirmed"]) == ("controls-failed", None)
    assert result["sentence"] == f"The control wrong-late ended {ended} at confirmation; it must end in a mismatch."
    assert tried == ["wrong-late"], "nothing is confirmed by a gate that does not work"


@pytest.mark.parametrize(
    "outcomes",
    [
        {"wrong-late": "mismatch", "step": "matched", "C022": "matched"},
        {"wrong-late": "mismatch", "step": "failed", "C022": "matched"},
        {"wrong-late": "mismatch", "step": "mismatch", "C022": "mismatch"},
        {"wrong-late": "matched", "step": "matched"},
        {"wrong-late": "failed", "step": "killed"},
    ],
)
def test_what_runs_ahead_changes_nothing(place: Place, monkeypatch: pytest.MonkeyPatch, outcomes: dict[str, str]) -> None:
    alone, one_by_one = confirmed(place, monkeypatch, outcomes)
    beside, tried = confirmed(place, monkeypatch, outcomes, jobs=2)
    assert beside == alone
    assert set(tried) == {"wrong-late", "step", *one_by_one}, "only the control and the first candidate are run ahead"


def test_an_error_of_what_is_needed_ends_the_stage(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="step was killed"):
        confirmed(place, monkeypatch, {"wrong-late": "mismatch", "step": "killed", "C022": "matched"}, jobs=2)
    assert not (place.folder / "confirmation.json").exists()


def test_the_controls_and_the_first_candidate_run_at_the_same_time(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    order = ["wrong-late", "step", "C022"]
    candidates = {name: {"control": name == "wrong-late"} for name in order}
    write_json(place.folder / "ranking.json", {"status": None, "order": order, "candidates": candidates})
    together = threading.Barrier(2)

    def meets(folder: Path, name: str) -> dict[str, Any]:
        together.wait(timeout=20)
        return attempt(name, "mismatch" if name == "wrong-late" else "matched")

    monkeypatch.setattr(confirm, "attempt_fresh", meets)
    confirm.run(place.folder, CODE, 2)
    assert read_json(place.folder / "confirmation.json")["confirmed"] == "step"


def test_a_ranking_with_nothing_to_confirm_is_passed_on(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    result, tried = confirmed(place, monkeypatch, {"step": "matched"}, status="not-faster")
    assert tried == []
    assert (result["status"], result["confirmed"], result["attempts"]) == ("skipped", None, [])
    assert result["sentence"] == "Exact, but not faster than eager: step."


def test_an_attempt_is_a_fresh_process(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_fresh(command: str, folder: str, *options: str) -> None:
        named = dict(zip(options[::2], options[1::2], strict=True))
        assert (command, folder, named["--candidate"]) == ("confirm-one", str(place.folder), "step")
        write_json(Path(named["--out"]), attempt("step", "matched"))

    monkeypatch.setattr(confirm, "run_fresh", run_fresh)
    assert confirm.attempt_fresh(place.folder, "step")["status"] == "matched"
    assert confirm.traces_fresh(place.folder, "step") == sets()


def test_a_failed_attempt_has_no_traces_to_verify_with(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confirm, "attempt_fresh", lambda folder, name: attempt(name, "failed"))
    with pytest.raises(Refused, match="broken") as caught:
        confirm.traces_fresh(place.folder, "step")
    assert caught.value.refusal.reason == "confirmation-failed"
