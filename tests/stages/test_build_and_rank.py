"""Stages that load no model where there is nothing to decide."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import key_folder
import pytest

from exactgraph.candidates.registry import CONTROLS, MODULES, candidate
from exactgraph.canonical import digest, read_json, write_json
from exactgraph.refusal import UserError
from exactgraph.stages import build, environment, rank, validate
from exactgraph.stages.place import Place

CODE = "e" * 16


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    def no_bench(place: Place) -> Any:
        raise AssertionError("a model was loaded")

    for stage in (build, validate):
        monkeypatch.setattr(stage, "open_model", no_bench)
    place = key_folder.make(tmp_path)
    write_json(place.folder / "profile.json", {"skip": {}})
    return place


@pytest.mark.parametrize("name", MODULES)
def test_nothing_is_built_on_an_unstable_baseline(place: Place, name: str) -> None:
    write_json(place.folder / "frozen.json", {"status": "baseline-unstable"})
    build.run(place.folder, CODE, name)
    plan = read_json(place.plan_path(name))
    assert (plan["status"], plan["refusal"], plan["decisions"]) == ("skipped", None, {})
    assert (plan["stage"], plan["code"], plan["candidate"]) == ("build", CODE, name)
    validate.run(place.folder, CODE, name)
    validation = read_json(place.validation_path(name))
    assert (validation["status"], validation["grade"], validation["comparison"]) == ("skipped", None, None)
    assert validation["control"] is (name in CONTROLS)
    assert (validation["sets"], validation["traces_digest"], validation["process"]) == ({}, digest({}), None)


@pytest.mark.parametrize("name", CONTROLS)
def test_a_control_has_nothing_to_decide(place: Place, name: str) -> None:
    write_json(place.folder / "frozen.json", {"status": "frozen"})
    build.run(place.folder, CODE, name)
    plan = read_json(place.plan_path(name))
    assert (plan["status"], plan["control"], plan["claims"]) == ("built", True, "bit-identical")
    assert plan["timed"] is (name != "wrong-late")


@pytest.mark.parametrize("name", ["C022", "step"])
def test_a_candidate_is_planned_on_the_model(place: Place, name: str) -> None:
    write_json(place.folder / "frozen.json", {"status": "frozen"})
    with pytest.raises(AssertionError, match="a model was loaded"):
        build.run(place.folder, CODE, name)


def test_what_the_profile_skips_is_not_built(place: Place) -> None:
    write_json(place.folder / "frozen.json", {"status": "frozen"})
    write_json(place.folder / "profile.json", {"skip": {"C022": "It cannot matter."}})
    build.run(place.folder, CODE, "C022")
    plan = read_json(place.plan_path("C022"))
    assert (plan["status"], plan["decisions"]) == ("skipped", {})
    assert plan["refusal"] == {"reason": "cannot-matter", "sentence": "It cannot matter."}
    validate.run(place.folder, CODE, "C022")
    validation = read_json(place.validation_path("C022"))
    assert (validation["status"], validation["why"]) == ("skipped", "It cannot matter.")


def test_a_refused_plan_is_a_refused_validation_with_its_sentence(place: Place) -> None:
    plan = {"control": False, "status": "refused", "refusal": {"reason": "unknown-layout", "sentence": "It is not known."}}
    write_json(place.plan_path("C022"), plan)
    validate.run(place.folder, CODE, "C022")
    validation = read_json(place.validation_path("C022"))
    assert (validation["status"], validation["why"]) == ("refused", "It is not known.")


def test_there_is_no_such_candidate(place: Place) -> None:
    with pytest.raises(UserError, match=r"There is no candidate 'C999'. Known candidates: C022, .*, static-step-compile"):
        candidate("C999")


def test_the_ranking_reads_controls_and_configured_candidates(place: Place) -> None:
    write_json(place.folder / "frozen.json", {"status": "frozen"})
    ratios = {"null": 1.0, "C022": 1.2, "step": 4.0}
    for name in (*CONTROLS, "C022", "step"):
        timing = {"ratio": ratios[name], "faster": ratios[name] > 1} if name in ratios else None
        validation = {
            "candidate": name,
            "control": name in CONTROLS,
            "status": "rejected" if name == "wrong-ulp" else "exact",
            "grade": "bit-identical",
            "timing": timing,
            "code": digest(name)[:16],
        }
        write_json(place.validation_path(name), validation)
        write_json(place.plan_path(name), {"candidate": name, "decisions": {"for": name}})
    rank.run(place.folder, CODE, ["C022", "step"])
    ranking = read_json(place.folder / "ranking.json")
    assert ranking["order"] == ["wrong-late", "step", "C022"]
    assert "ratio" not in str(ranking), "a timing would make every run's ranking another one"
    order = read_json(place.folder / "order.json")
    assert order["order"] == [
        {"candidate": name, "plan": digest({"candidate": name, "decisions": {"for": name}})} for name in ranking["order"]
    ]
    rank.run(place.folder, CODE, ["C022"])
    assert read_json(place.folder / "ranking.json")["order"] == ["wrong-late", "C022"]


def probe(root: Path, slot: str, device: str, key: str) -> None:
    found = {
        "slot": slot,
        "host": slot,
        "gpu_uuid": "GPU-1",
        "device": {"id": device},
        "environment": {"key": key, "facts": {}},
        "precision": "bf16",
        "refusal": None,
    }
    write_json(root / slot / "probe.json", found)


def test_the_environment_of_a_key_comes_from_the_probe_that_found_it(tmp_path: Path) -> None:
    slots, folder = tmp_path / "slots", tmp_path / "model@1" / "gpu-b" / "k2"
    probe(slots, "one", "gpu-a", "k2")
    probe(slots, "two", "gpu-b", "k1")
    with pytest.raises(UserError, match="was last seen as gpu-b in environment k2; run the probe"):
        environment.run(folder, slots)
    probe(slots, "three", "gpu-b", "k2")
    environment.run(folder, slots)
    # Neither host nor UUID: identical GPUs share the file.
    assert read_json(folder / "environment.json") == {
        "device": {"id": "gpu-b"},
        "environment": {"key": "k2", "facts": {}},
        "precision": "bf16",
    }
