"""The order of confirmation, and every way in which there is nothing to confirm."""

from __future__ import annotations

from typing import Any

import pytest

from exactgraph.protocol.ranking import rank

Validations = dict[str, dict[str, Any]]
CONTROLS = ("null", "wrong-ulp", "wrong-late")


def validation(name: str, status: str = "exact", ratio: float | None = None, faster: bool | None = None) -> dict[str, Any]:
    timing = None if ratio is None else {"ratio": ratio, "faster": ratio > 1 if faster is None else faster}
    return {
        "candidate": name,
        "control": name in CONTROLS,
        "status": status,
        "grade": "bit-identical" if status == "exact" else None,
        "timing": timing,
        "code": f"code of {name}",
    }


def world(**changes: dict[str, Any]) -> Validations:
    """Controls that did what they are for, and three exact candidates; ``changes`` by name, ``_`` for ``-``."""
    found = {
        "null": validation("null", ratio=1.0, faster=False),
        "wrong-ulp": validation("wrong-ulp", "rejected"),
        "wrong-late": validation("wrong-late"),
        "C022": validation("C022", ratio=1.3),
        "step": validation("step", ratio=5.0),
        "C024": validation("C024", ratio=1.6),
    }
    return {**found, **{name.replace("_", "-"): change for name, change in changes.items()}}


def untimed(validations: Validations) -> Validations:
    return {name: {**found, "timing": None} for name, found in validations.items()}


def test_controls_come_first_then_the_fastest() -> None:
    ranking = rank("frozen", False, world())
    assert ranking["status"] is None
    assert ranking["order"] == ["wrong-late", "step", "C024", "C022"]
    assert ranking["sentence"] == "To be confirmed: step, C024, C022."


def test_a_rehearsal_is_untimed_and_takes_the_last_rung_first() -> None:
    ranking = rank("frozen", True, untimed(world()))
    assert ranking["status"] is None
    assert ranking["order"] == ["wrong-late", "C024", "step", "C022"]


def test_only_what_may_be_confirmed_keeps_its_code() -> None:
    validations = world(C022=validation("C022", "rejected"), C024=validation("C024", ratio=0.9))
    candidates = rank("frozen", False, validations)["candidates"]
    assert {name: found["code"] for name, found in candidates.items()} == {
        "null": None,
        "wrong-ulp": None,
        "wrong-late": "code of wrong-late",
        "C022": None,
        "step": "code of step",
        "C024": None,
    }
    assert {name: found["verdict"] for name, found in candidates.items()} == {
        "null": "not-faster",
        "wrong-ulp": "rejected",
        "wrong-late": "ranked",
        "C022": "rejected",
        "step": "ranked",
        "C024": "not-faster",
    }
    assert (candidates["step"]["grade"], candidates["C022"]["grade"]) == ("bit-identical", None)
    assert (candidates["wrong-late"]["control"], candidates["step"]["control"]) == (True, False)


def test_ratios_do_not_rank_what_is_not_significantly_faster() -> None:
    ranking = rank("frozen", False, world(step=validation("step", ratio=5.0, faster=False)))
    assert ranking["order"] == ["wrong-late", "C024", "C022"]


def ended(validations: Validations, baseline: str = "frozen", rehearsal: bool = False) -> tuple[str | None, str]:
    ranking = rank(baseline, rehearsal, validations)
    assert ranking["order"] == []
    return ranking["status"], ranking["sentence"]


def test_exact_but_not_faster() -> None:
    slow = {name: validation(name, ratio=1.2, faster=False) for name in ("step", "C024")}
    status, sentence = ended(world(C022=validation("C022", "rejected"), **slow))
    assert status == "not-faster"
    assert sentence == "Exact, but not faster than eager: step, C024."


@pytest.mark.parametrize("status", ["rejected", "refused", "failed"])
def test_no_exact_candidate(status: str) -> None:
    found, _ = ended(world(**{name: validation(name, status) for name in ("C022", "step", "C024")}))
    # The control null is exact and not faster; it must not make the run look as if a candidate were.
    assert found == "no-exact-candidate"


def test_an_unstable_baseline_ends_before_anything_else() -> None:
    skipped = {name: validation(name, "skipped") for name in world()}
    assert ended(skipped, "baseline-unstable")[0] == "baseline-unstable"


def test_a_baseline_that_moved_later_is_unstable() -> None:
    assert ended(world(C022=validation("C022", "baseline-moved")))[0] == "baseline-unstable"


@pytest.mark.parametrize(
    ("control", "wrong", "named"),
    [
        ("null", validation("null", "rejected"), "null, eager itself, ended rejected"),
        ("null", validation("null", "failed"), "null, eager itself, ended failed"),
        ("wrong-ulp", validation("wrong-ulp", ratio=1.0, faster=False), "wrong-ulp, a changed rounding, ended ranked"),
        ("wrong-ulp", validation("wrong-ulp", "failed"), "wrong-ulp, a changed rounding, ended failed"),
        ("wrong-ulp", validation("wrong-ulp", "refused"), "wrong-ulp, a changed rounding, ended refused"),
        ("wrong-late", validation("wrong-late", "rejected"), "wrong-late ended rejected"),
        ("wrong-late", validation("wrong-late", "refused"), "wrong-late ended refused"),
    ],
)
@pytest.mark.parametrize("rehearsal", [False, True])
def test_a_control_that_did_not_do_its_part_ends_everything(
    control: str, wrong: dict[str, Any], named: str, rehearsal: bool
) -> None:
    validations = world(**{control.replace("-", "_"): wrong})
    status, sentence = ended(untimed(validations) if rehearsal else validations, rehearsal=rehearsal)
    assert status == "controls-failed"
    assert sentence.startswith(f"The control {named}")


def test_a_faster_null_says_that_timing_is_broken() -> None:
    status, sentence = ended(world(null=validation("null", ratio=1.02, faster=True)))
    assert status == "controls-failed"
    assert sentence.startswith("The control null, eager itself, ended faster;")


def test_failed_controls_outweigh_the_candidates_own_end() -> None:
    slow = {name: validation(name, ratio=0.9) for name in ("C022", "step", "C024")}
    assert ended(world(wrong_ulp=validation("wrong-ulp"), **slow))[0] == "controls-failed"
