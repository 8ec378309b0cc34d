"""What candidates can touch: bounds, order and skips, by hand-made figures."""

from __future__ import annotations

from dataclasses import replace

import pytest

from exactgraph.candidates.registry import CONTROLS, MODULES
from exactgraph.candidates.touches import TOUCHES
from exactgraph.models import parts
from exactgraph.profile.reach import Step, order, reach, skips

SHARES = {"projection": 0.3, "norm": 0.2, "cache": 0.05, "attention": 0.25, "sampling": 0.2, "mlp": 0.25, "q, k, v": 0.1}
KERNELS = {"projection": 7.0, "norm": 12.0, "cache": 2.0, "attention": 1.0, "sampling": 8.0, "mlp": 5.0, "q, k, v": 3.0}
STEP = Step(SHARES, KERNELS, {name: count / 10 for name, count in KERNELS.items()}, 20.0, 2.0, knows_parts=True)


def test_a_part_that_takes_no_time_leaves_the_rest() -> None:
    found = reach(STEP, (parts.MLP, parts.QKV))
    assert found is not None
    assert found["share"] == pytest.approx(0.35)
    assert found["at_most"] == pytest.approx(1 / 0.65)
    assert found["kernels"] == 8
    assert found["gpu_ms"] == pytest.approx(0.8)


def test_the_gpus_own_time_stays() -> None:
    found = reach(STEP, (parts.WHOLE,))
    assert found is not None
    assert found["at_most"] == 10
    assert found["kernels"] == 30


def test_without_a_measured_step_there_is_no_bound_and_no_skip() -> None:
    rehearsed = replace(STEP, kernels=None, gpu_ms=None, step_ms=None, busy_ms=None)
    found = reach(rehearsed, (parts.CACHE,))
    assert found == {"touches": ["cache"], "share": 0.05, "kernels": None, "gpu_ms": None, "at_most": None}
    assert skips({"static": {**found, "share": 0.0}}) == {}


def test_parts_of_an_unknown_layout_have_no_reach_and_kinds_have() -> None:
    unknown = replace(STEP, knows_parts=False)
    assert reach(unknown, (parts.MLP,)) is None
    assert reach(unknown, (parts.CACHE,)) is not None
    assert reach(unknown, (parts.WHOLE,)) is not None


def test_the_most_promising_comes_first_and_of_equals_the_later_rung() -> None:
    reaches = {name: reach(STEP, TOUCHES[name]) for name in ("C022", "C023", "C024", "C025", "C026", "step")}
    assert order({"unknown": None, **reaches}) == ["step", "C026", "C025", "C024", "C023", "C022", "unknown"]


def test_what_cannot_matter_is_skipped_with_its_reason() -> None:
    small = replace(STEP, shares={**SHARES, "cache": 0.009})
    reaches = {"cache": reach(small, (parts.CACHE,)), "C022": reach(small, (parts.MLP,)), "unknown": None}
    assert skips(reaches) == {
        "cache": "It touches cache, 0.9% of the host's time in a step: at most 1.009 times eager, "
        "and less than 1.01 is not worth building."
    }


def test_on_a_gpu_that_never_waits_nothing_of_the_host_matters() -> None:
    bound = replace(STEP, busy_ms=19.9)
    assert set(skips({"step": reach(bound, (parts.WHOLE,))})) == {"step"}


def test_every_candidate_says_what_it_touches() -> None:
    assert set(TOUCHES) == set(MODULES) - set(CONTROLS)
    names = set(parts.KINDS) | {parts.INPUT_NORM, parts.QKV, parts.POST_NORM, parts.MLP, parts.FINAL_NORM, parts.WHOLE}
    assert {name for touched in TOUCHES.values() for name in touched} <= names
