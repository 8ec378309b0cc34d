"""Receipts to report on: a committed one with invented figures, and what becomes of it when the run had ended otherwise."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import made_profiles

from exactgraph.canonical import read_json
from exactgraph.receipts.schema import problems

EVIDENCE = Path(__file__).parents[2] / "docs" / "evidence"
COMMITTED = sorted(EVIDENCE.glob("*/*@*/*/*/*/receipt.json"))
MINICPM5 = next(path for path in COMMITTED if "minicpm5" in str(path))
Receipt = dict[str, Any]
MOVED = {"prompt": "heldout/2", "step": 17, "expected": 812, "got": 4711, "margin": 0.125, "kind": "token"}


# Invented: eager tok/s, tok/s, ratio, its interval, share of the floor.
FIGURES = {
    "null": (47.05, 45.58, 0.97, [0.92, 1.02], 0.0195),
    "C022": (37.58, 41.94, 1.11, [1.02, 1.21], 0.0179),
    "step": (41.40, 393.35, 7.95, [7.32, 8.63], 0.1680),
}


def minicpm5() -> Receipt:
    """An optimized run on MiniCPM5-1B's shapes with the controls and two candidates."""
    receipt: Receipt = read_json(MINICPM5)
    candidates = receipt["predicate"]["candidates"]
    for name in [name for name, record in candidates.items() if not record["control"] and name not in FIGURES]:
        del candidates[name]
    for name, (eager, rate, ratio, interval, share) in FIGURES.items():
        record = candidates[name]
        record["timing"] |= {"eager_tok_s": eager, "candidate_tok_s": rate, "ratio": ratio, "interval": interval}
        record["timing"]["faster"] = interval[0] > 1
        record["measured"] = record["measured"] | {"share_of_floor": share}
    candidates["C022"]["verdict"] = "ranked"
    made_profiles.add(receipt["predicate"])
    return receipt


def checked(receipt: Receipt) -> Receipt:
    assert problems(receipt) == []
    return receipt


def rehearsal() -> Receipt:
    """The same on a CPU, where nothing is timed."""
    receipt = minicpm5()
    predicate = receipt["predicate"]
    predicate["device"] = {"id": "cpu-x86_64", "kind": "cpu", "name": "Some CPU", "capability": None, "sm_count": None}
    predicate["device"] |= {"memory_gb": 0, "mig": None}
    predicate["environment"]["facts"] = {"torch": "2.13.0+cpu", "threads": "2"}
    predicate["protocol"]["whole"] |= {"rehearsal": True, "dtype": "fp32", "timed": 0}
    predicate["profile"] = made_profiles.rehearsed()
    predicate["gpus"], predicate["precision"], predicate["status"] = [], "fp32", "rehearsal"
    predicate["sentence"] = (
        "In a rehearsal on cpu-x86_64, step reproduced the baseline (bit-identical), also on prompts and lengths that "
        "validation never saw; nothing was timed and nothing is optimized."
    )
    for name, candidate in predicate["candidates"].items():
        candidate["timing"], candidate["measured"] = None, {"emulated": True, "graphs": 3}
        candidate["verdict"] = {"C022": "exact", "null": "exact"}.get(name, candidate["verdict"])
    return checked(receipt)


def reject(receipt: Receipt, name: str) -> None:
    """The candidate gave another token at validation."""
    candidate = receipt["predicate"]["candidates"][name]
    logits = MOVED | {"kind": "logits", "step": 3, "expected": 5, "got": 5, "margin": 2.0}
    comparison = {"matches": 3, "of": 6, "logits_equal": 200, "logits_of": 384}
    comparison |= {"first_token_difference": MOVED, "first_logits_difference": logits}
    candidate |= {"comparison": comparison, "timing": None, "grade": None, "verdict": "rejected"}
    candidate["why"] = "First other token at prompt heldout/2, step 17."
    candidate["validation"]["status"] = "rejected"


def stop(receipt: Receipt, name: str, verdict: str, why: str) -> None:
    """The candidate gave nothing to compare."""
    candidate = receipt["predicate"]["candidates"][name]
    candidate |= {"comparison": None, "timing": None, "grade": None, "verdict": verdict, "why": why, "measured": {}}
    candidate["validation"]["status"] = verdict


def unconfirmed(receipt: Receipt, status: str, sentence: str) -> Receipt:
    """The run ended before anything was to be confirmed."""
    predicate = receipt["predicate"]
    predicate |= {"status": status, "sentence": sentence}
    predicate["confirmation"] |= {"attempts": [], "confirmed": None}
    predicate["ranking"]["order"] = []
    return receipt


def no_exact() -> Receipt:
    receipt = minicpm5()
    reject(receipt, "step")
    stop(receipt, "C022", "refused", "No layer of this model has the layout that C022 knows.")
    return checked(unconfirmed(receipt, "no-exact-candidate", "No candidate reproduced the baseline."))


def not_faster() -> Receipt:
    receipt = minicpm5()
    for name in ("step", "C022"):
        candidate = receipt["predicate"]["candidates"][name]
        candidate["timing"] |= {"ratio": 0.9, "interval": [0.8, 1.0], "faster": False}
        candidate["verdict"] = "not-faster"
    return checked(unconfirmed(receipt, "not-faster", "Exact, but not faster than eager: C022, step."))


def unstable() -> Receipt:
    receipt = minicpm5()
    for name in receipt["predicate"]["candidates"]:
        stop(receipt, name, "skipped", "There is no stable baseline.")
    receipt["predicate"]["profile"] = made_profiles.unprofiled("skipped", "There is no baseline to profile.")
    baseline = receipt["predicate"]["baseline"]
    failed = {"reason": "generate-failed", "sentence": "It cannot run here."}
    baseline["attempts"][1] |= {"agree": False, "failed": failed}
    baseline |= {"status": "baseline-unstable", "pin": None, "traces_digest": None, "attention": "default"}
    sentence = "Eager does not reproduce itself under any attention backend."
    return checked(unconfirmed(receipt, "baseline-unstable", sentence))


def mismatched() -> Receipt:
    receipt = minicpm5()
    predicate = receipt["predicate"]
    attempt = predicate["confirmation"]["attempts"][1]
    comparison = attempt["comparison"] | {"matches": 12, "first_token_difference": MOVED | {"prompt": "long/0", "step": 401}}
    attempt |= {
        "status": "mismatch",
        "grade": None,
        "difference": comparison["first_token_difference"],
        "comparison": comparison,
    }
    second = attempt | {"candidate": "C022", "status": "failed", "comparison": None, "difference": None}
    predicate["confirmation"]["attempts"].append(second | {"why": "Out of memory in a fresh process."})
    predicate["confirmation"]["confirmed"] = None
    predicate["candidates"]["step"]["verdict"], predicate["candidates"]["C022"]["verdict"] = "mismatch", "failed"
    predicate |= {"status": "confirmation-mismatch", "sentence": "Exact at validation, but not confirmed by a fresh process."}
    return checked(receipt)


def uncontrolled() -> Receipt:
    receipt = minicpm5()
    predicate = receipt["predicate"]
    attempts = predicate["confirmation"]["attempts"]
    attempts[0] |= {"status": "matched", "difference": None, "grade": "bit-identical", "comparison": attempts[1]["comparison"]}
    predicate["confirmation"] |= {"attempts": attempts[:1], "confirmed": None}
    predicate["candidates"]["wrong-late"]["verdict"], predicate["candidates"]["step"]["verdict"] = "uncaught", "ranked"
    predicate |= {
        "status": "controls-failed",
        "sentence": "The control wrong-late must be caught, but it was confirmed there.",
    }
    return checked(receipt)


ENDINGS = {
    "optimized": minicpm5,
    "rehearsal": rehearsal,
    "no-exact-candidate": no_exact,
    "not-faster": not_faster,
    "baseline-unstable": unstable,
    "confirmation-mismatch": mismatched,
    "controls-failed": uncontrolled,
}


def long_ladder() -> Receipt:
    """A run with every rung, of invented figures, in which the compiled model is rejected."""
    receipt = minicpm5()
    candidates = receipt["predicate"]["candidates"]
    for name, ratio in {"C023": 1.42, "C024": 1.49, "C025": 1.78, "C026": 1.80}.items():
        made = candidates[name] = copy.deepcopy(candidates["C022"])
        rates = {"ratio": ratio, "interval": [ratio * 0.97, ratio * 1.03], "candidate_tok_s": 40 * ratio, "eager_tok_s": 40.0}
        made["timing"] |= rates
        made["measured"]["share_of_floor"] = 0.0178 * ratio
    candidates["compile"] = copy.deepcopy(candidates["C022"])
    candidates["static-compile"] = copy.deepcopy(candidates["C022"])
    reject(receipt, "compile")
    stop(receipt, "static-compile", "refused", "There is no compiler on this machine.")
    candidates["static"] = copy.deepcopy(candidates["static-compile"])
    stop(receipt, "static", "skipped", made_profiles.NEVER)
    return checked(receipt)


def words(html: str) -> str:
    """What a reader sees of a page, on one line."""
    shown = re.sub(r"<style>.*?</style>", "", html, flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", shown))
