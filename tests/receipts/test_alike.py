"""Two receipts of identical GPUs: equal but for UUIDs, processes and timings."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from evidence_world import PROMPTS, World, altered, timing, traces

from exactgraph.receipts.alike import alike
from exactgraph.receipts.statement import write

Bend = Callable[[World], None]


def receipt(root: Path, bend: Bend = lambda world: None) -> Path:
    """A receipt of another GPU and other processes, after ``bend``."""
    world = World(root / "artifacts")
    bend(world)
    folder = world.write()
    write(folder)
    return folder / "receipt.json"


def elsewhere(world: World) -> None:
    """As a run on the other GPU leaves it: other UUIDs, processes and timings, and another order."""
    processes = [record["process"] for records in world.baselines.values() for record in records]
    processes += [validation["process"] for validation in world.validations.values()]
    processes += [attempt["process"] for attempt in [*world.confirmations, world.profile]]
    for place, process in enumerate(processes):
        process |= {"gpu_uuid": "GPU-2", "pid": 5000 + place, "seconds": 2.5, "started": "2026-11-30T08:00:00+00:00"}
    world.validations["C022"]["timing"] = timing(1.0)
    world.order.remove("C022")
    world.validations["step"]["timing"] = timing(6.4)


def lines(tmp_path: Path, bend: Bend) -> tuple[bool, list[str]]:
    result = alike(receipt(tmp_path / "one"), receipt(tmp_path / "other", bend))
    return result.ok, [line for line in result.lines if not line.startswith("yes: ")]


def test_another_gpu_of_the_kind_says_the_same(tmp_path: Path) -> None:
    result = alike(receipt(tmp_path / "one"), receipt(tmp_path / "other", elsewhere))
    assert result.ok, result.lines
    said = "\n".join(result.lines)
    assert "yes: the baseline under default: 6 answers, 50 logits, equal bits" in said
    assert "yes: step at validation: 3 answers, 18 logits, equal bits" in said
    assert "yes: wrong-late at confirmation" in said
    assert "optimized on GPU-1" in said
    assert "optimized on GPU-2" in said
    assert "step 5.90x" in said
    assert "step 6.40x" in said


def other_decisions(world: World) -> None:
    world.plans["step"]["decisions"] = {"graphs": 4}


def other_graphs(world: World) -> None:
    world.validations["step"]["measured"] = {"graphs": 4}


def other_code(world: World) -> None:
    world.plans["step"]["code"] = "0" * 16


def other_bits_of_a_rejected_one(world: World) -> None:
    world.validate("wrong-ulp", altered(traces("heldout"), "heldout/2", 1))


def refused(world: World) -> None:
    world.stop("C022", "refused", "It cannot be captured.")
    world.order.remove("C022")


def without_a_candidate(world: World) -> None:
    world.forget("C022")
    world.order.remove("C022")


def other_library(world: World) -> None:
    world.facts = {**world.facts, "torch": "2.12.0"}


@pytest.mark.parametrize(
    ("bend", "said"),
    [
        (other_decisions, "no: the plan of step differs in decisions: {'graphs': 3}; {'graphs': 4}"),
        (other_graphs, "no: the validation of step differs in graphs: 3; 4"),
        (other_code, "no: the plan of step differs in code"),
        (refused, "no: the plan of C022 differs in status: built; refused"),
        (without_a_candidate, "no: the candidates differ"),
        (other_library, "no: the environment differs in environment"),
    ],
)
def test_what_differs_is_named(tmp_path: Path, bend: Bend, said: str) -> None:
    ok, found = lines(tmp_path, bend)
    assert not ok
    assert any(line.startswith(said) for line in found), found


def test_a_logit_with_other_bits_is_a_difference(tmp_path: Path) -> None:
    """Both are true to their evidence; between the GPUs one logit of the baseline and of all that equals it moved."""
    moved = altered(traces(*PROMPTS), "confirm/1", 4, token=False)

    def bend(world: World) -> None:
        world.run_baseline("default", [moved] * 3)
        for attempt in world.confirmations:
            attempt["sets"]["confirm"] = moved["confirm"]

    ok, found = lines(tmp_path, bend)
    assert not ok
    assert "no: the baseline under default: first logits with other bits at prompt confirm/1, step 4" in "\n".join(found)
    assert "no: step at confirmation: first logits with other bits at prompt confirm/1, step 4" in "\n".join(found)


def test_what_was_rejected_need_not_be_equal(tmp_path: Path) -> None:
    ok, found = lines(tmp_path, other_bits_of_a_rejected_one)
    assert ok, found
    assert any(line.startswith("note: wrong-ulp: rejected in both") for line in found)


def test_one_that_does_not_verify_is_compared_with_nothing(tmp_path: Path) -> None:
    one, other = receipt(tmp_path / "one"), receipt(tmp_path / "other")
    plan = other.parent / "candidates" / "step" / "plan.json"
    plan.write_bytes(plan.read_bytes().replace(b'"graphs":3', b'"graphs":5'))
    result = alike(one, other)
    assert not result.ok
    assert all(line.startswith(f"no: {other} does not verify") for line in result.lines)


def test_the_command(tmp_path: Path) -> None:
    one = receipt(tmp_path / "one")
    for bend, code in ((elsewhere, 0), (other_decisions, 1)):
        asked = [sys.executable, "-m", "exactgraph", "compare", str(one), str(receipt(tmp_path / bend.__name__, bend))]
        assert subprocess.run(asked, capture_output=True, check=False).returncode == code
