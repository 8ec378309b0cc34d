"""What the profile stage writes, on a small model and the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from exactgraph.canonical import read_json, write_json
from exactgraph.profile import step as profiled_step
from exactgraph.stages import profile as stage
from exactgraph.stages.loaded import Loaded
from exactgraph.stages.place import Place

CODE = "e" * 16
NAMES = ["C022", "C026", "static", "step"]
Run = Callable[..., dict[str, Any]]


@pytest.fixture
def run(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> Run:
    def go(**changes: Any) -> dict[str, Any]:
        @contextmanager
        def opened(place: Place) -> Iterator[Loaded]:
            yield replace(loaded, **changes)

        monkeypatch.setattr(stage, "open_model", opened)
        stage.run(loaded.place.folder, CODE, NAMES)
        written: dict[str, Any] = read_json(loaded.place.folder / "profile.json")
        return written

    return go


def test_a_rehearsal_has_shares_and_neither_times_nor_skips(run: Run, loaded: Loaded) -> None:
    found = run()
    assert (found["status"], found["why"], found["stage"], found["code"]) == ("profiled", None, "profile", CODE)
    assert (found["attention"], found["prompt"], found["steps"]) == ("default", "heldout/0", 3)
    assert (found["step_ms"], found["gpu"]) == (None, None)
    assert sum(kind["share"] for kind in found["kinds"].values()) == pytest.approx(1)
    assert set(found["reach"]) == set(NAMES)
    assert found["reach"]["C022"]["touches"] == ["mlp"]
    assert found["order"][0] == "step"
    assert found["order"].index("C026") < found["order"].index("C022")
    assert read_json(loaded.place.folder / "skips.json") == {"skip": []}
    assert found["process"]["pid"]


def test_what_could_gain_nothing_is_skipped_where_steps_are_timed(
    run: Run, loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    from exactgraph.profile.reach import Step

    figures = profiled_step.figures

    def on_a_busy_gpu(*arguments: Any) -> tuple[dict[str, Any], Step]:
        found, step = figures(*arguments)
        assert step.step_ms is not None
        return found, replace(step, busy_ms=step.step_ms)

    monkeypatch.setattr(profiled_step, "figures", on_a_busy_gpu)
    found = run(protocol={**loaded.protocol, "rehearsal": False})
    assert found["step_ms"] > 0
    assert set(found["skip"]) == set(NAMES)
    assert "less than 1.01 is not worth building" in found["skip"]["C022"]
    assert read_json(loaded.place.folder / "skips.json") == {"skip": sorted(NAMES)}


def test_eager_that_moved_is_no_profile(run: Run, loaded: Loaded) -> None:
    frozen = loaded.place.frozen()
    frozen["sets"]["heldout"][0]["tokens"][2] += 1
    write_json(loaded.place.folder / "frozen.json", frozen)
    found = run()
    assert (found["status"], found["why"]) == ("baseline-moved", "Eager left its own baseline at heldout/0, step 2.")
    assert (found["order"], found["skip"], found["kinds"]) == (NAMES, {}, {})


def test_answers_too_short_for_a_profile_cost_the_order_alone(run: Run, loaded: Loaded) -> None:
    short = [replace(question, new_tokens=3) for question in loaded.questions["heldout"]]
    found = run(questions={**loaded.questions, "heldout": short})
    assert (found["status"], found["order"], found["skip"]) == ("failed", NAMES, {})
    assert found["why"] == "An answer of 3 tokens is too short for a profile."


def test_without_a_baseline_no_model_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_model(place: Place) -> Any:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(stage, "open_model", no_model)
    write_json(tmp_path / "frozen.json", {"status": "baseline-unstable"})
    stage.run(tmp_path, CODE, NAMES)
    found = read_json(tmp_path / "profile.json")
    assert (found["status"], found["order"], found["process"]) == ("skipped", NAMES, None)
