"""Verdicts, found again from the evidence.

What a stage wrote down as its verdict is compared with what its traces and timings show; where the two disagree there is
no receipt. The final status then follows from the verdicts alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from exactgraph.candidates.registry import CONTROLS
from exactgraph.canonical import digest
from exactgraph.protocol.batch_verdict import first_of_all, judge_all
from exactgraph.protocol.compare import Comparison, compare_sets
from exactgraph.protocol.grades import TOKEN_IDENTICAL
from exactgraph.protocol.verdict import EXACT, REJECTED
from exactgraph.receipts.batches import batches_in, summary
from exactgraph.receipts.evidence import Evidence, Inconsistent
from exactgraph.receipts.windows import windows_in

VALIDATION_SET = "heldout"
# Relative. Figures are recomputed from the recorded pairs with additions in another order, nothing more.
_FIGURE_TOLERANCE = 1e-6


@dataclass(frozen=True)
class Finding:
    """What the evidence shows of one candidate.

    ``validated`` is validation's status as found again; ``confirmed`` is None where confirmation did not try it, else
    ``matched``, ``mismatch`` or ``failed``. ``faster`` is None where nothing was timed. ``batches``: what validation showed of
    each batch beyond one, empty where none was asked; ``windows``: of windows ahead of decoding, None where nothing was.
    """

    candidate: str
    control: bool
    validated: str
    faster: bool | None
    confirmed: str | None
    grade: str | None
    comparison: dict[str, Any] | None
    attempt: dict[str, Any] | None
    batches: list[dict[str, Any]]
    windows: dict[str, Any] | None

    @property
    def exact(self) -> bool:
        return self.validated == EXACT


def find(evidence: Evidence) -> dict[str, Finding]:
    """Every candidate's finding, by id."""
    attempts = {attempt["candidate"]: attempt for attempt in evidence.confirmation["attempts"]}
    if len(attempts) != len(evidence.confirmation["attempts"]) or not set(attempts) <= set(evidence.candidates):
        raise Inconsistent("confirmation.json tried a candidate twice, or one that the ranking does not know.")
    return {candidate: _find_one(evidence, candidate, attempts.get(candidate)) for candidate in evidence.candidates}


def _find_one(evidence: Evidence, candidate: str, attempt: dict[str, Any] | None) -> Finding:
    validation = evidence.validation(candidate)
    status, comparison, reached = validation["status"], validation.get("comparison"), None
    batches: list[dict[str, Any]] = []
    windows: dict[str, Any] | None = None
    control = evidence.ranking["candidates"][candidate]["control"]
    if not validation["control"] == control == (candidate in CONTROLS):
        raise Inconsistent(f"Candidate {candidate}: the files disagree on whether it is a control.")
    if status in (EXACT, REJECTED):
        comparison, reached, batches, windows = _recheck_validation(evidence, candidate)
    faster = _recheck_timing(evidence, candidate)
    confirmed = None
    if attempt is not None:
        if status != EXACT:
            raise Inconsistent(f"Candidate {candidate} went to confirmation, but its validation says {status}.")
        confirmed, confirmed_grade, attempt = _recheck_attempt(evidence, attempt)
        if confirmed == "matched" and confirmed_grade == TOKEN_IDENTICAL:
            reached = TOKEN_IDENTICAL
    return Finding(candidate, control, status, faster, confirmed, reached, comparison, attempt, batches, windows)


def _recheck_validation(
    evidence: Evidence, candidate: str
) -> tuple[dict[str, Any], str | None, list[dict[str, Any]], dict[str, Any] | None]:
    """The comparison to report, the grade that it gives with the batches, these, and what it shows of windows.

    ``matches`` and ``of`` stay as recorded, since they also count timed repetitions whose tokens were compared in the
    process; differences and logits come from the recorded traces.
    """
    validation = evidence.validation(candidate)
    recorded = validation["comparison"]
    found = _compare(evidence, validation, f"the validation of {candidate}", {VALIDATION_SET})
    # A difference seen only in a timed repetition is in no trace: then the recorded one is all there is.
    difference = found["first_token_difference"] or recorded["first_token_difference"]
    merged: Comparison = {
        **found,
        "matches": recorded["matches"],
        "of": recorded["of"],
        "first_token_difference": difference,
    }
    # All repetitions may match where the recorded pass differed: a candidate that varies is rejected all the same.
    if recorded["of"] < found["of"] or (recorded["matches"] != recorded["of"] and difference is None):
        raise Inconsistent(f"The counts in the validation of {candidate} do not fit its traces and differences.")
    batches = batches_in(evidence, validation, found, f"The validation of {candidate}")
    claims = evidence.plan(candidate)["claims"]
    judged = judge_all(merged, batches, claims)
    # Asked after the recorded pass; repetitions, and with them the timing, come later.
    exact = judge_all(found, batches, claims)["status"] == EXACT
    timed = evidence.plan(candidate)["timed"] and evidence.protocol["timed"] > 0
    windows = windows_in(evidence, validation, exact, {VALIDATION_SET}, timed, f"The validation of {candidate}")
    if (validation["status"], validation["grade"]) != (judged["status"], judged["grade"]):
        raise Inconsistent(
            f"The validation of {candidate} says {validation['status']} ({validation['grade']}); "
            f"its comparison gives {judged['status']} ({judged['grade']})."
        )
    # A control that only confirmation is to catch is recorded once and not repeated.
    repeated = evidence.plan(candidate)["timed"] or not validation["control"]
    asked = found["of"] * (evidence.protocol["repetitions"] if repeated else 1)
    if judged["status"] == EXACT and recorded["of"] < asked:
        raise Inconsistent(f"The validation of {candidate} rests on {recorded['of']} comparisons, not on {asked}.")
    return dict(merged), judged["grade"], summary(batches), windows


def _recheck_timing(evidence: Evidence, candidate: str) -> bool | None:
    """Whether the candidate was measured faster. All figures but the bootstrap interval follow from the pairs."""
    timing = evidence.validation(candidate).get("timing")
    if timing is None:
        return None
    pairs, (low, high) = timing["pairs"], timing["interval"]
    prompts, timed = evidence.protocol["sets"][VALIDATION_SET]["prompts"], evidence.protocol["timed"]
    asked = sorted((repetition, prompt["id"]) for repetition in range(timed) for prompt in prompts)
    # Pairs left out or counted twice could make any candidate faster.
    if sorted((pair["repetition"], pair["prompt"]) for pair in pairs) != asked:
        raise Inconsistent(
            f"The timed pairs of {candidate} do not hold each held-out prompt as often as the protocol asks ({timed})."
        )
    figures = {
        "ratio": math.exp(math.fsum(math.log(pair["eager_s"] / pair["candidate_s"]) for pair in pairs) / len(pairs)),
        "eager_tok_s": _decode_rate(pairs, "eager"),
        "candidate_tok_s": _decode_rate(pairs, "candidate"),
    }
    for name, figure in figures.items():
        if not math.isclose(figure, timing[name], rel_tol=_FIGURE_TOLERANCE):
            raise Inconsistent(f"The timed pairs of {candidate} give {name} {figure:.6g}, not {timing[name]:.6g}.")
    if not low <= timing["ratio"] <= high or (low > 1) != timing["faster"]:
        raise Inconsistent(f"The interval of {candidate} does not hold its ratio, or does not give its verdict on speed.")
    return bool(low > 1)


def _decode_rate(pairs: list[dict[str, Any]], who: str) -> float:
    """Decode tokens a second: those after the first, over the time after the first, pooled."""
    seconds = math.fsum(pair[f"{who}_s"] - pair[f"{who}_first_s"] for pair in pairs)
    return float(sum(pair["tokens"] - 1 for pair in pairs) / seconds)


def _recheck_attempt(evidence: Evidence, attempt: dict[str, Any]) -> tuple[str, str | None, dict[str, Any]]:
    """Status, grade and summary of one confirmation attempt. A match must cover everything that validation never saw."""
    candidate, status = attempt["candidate"], attempt["status"]
    told: dict[str, Any] = {name: attempt[name] for name in ("candidate", "control", "status", "why")}
    if status == "failed":
        return status, None, told | {"grade": None, "difference": None, "comparison": None}
    unseen = set(evidence.frozen["sets"]) - {VALIDATION_SET}
    found = _compare(evidence, attempt, f"the confirmation of {candidate}", unseen)
    batches = batches_in(evidence, attempt, found, f"The confirmation of {candidate}")
    judged = judge_all(found, batches, evidence.plan(candidate)["claims"])
    shown = "matched" if judged["status"] == EXACT else "mismatch"
    if (status, attempt["grade"]) != (shown, judged["grade"]):
        raise Inconsistent(
            f"The confirmation of {candidate} says {status} ({attempt['grade']}); its traces give {shown} ({judged['grade']})."
        )
    if batches:
        told["batches"] = summary(batches)
    exact = judged["status"] == EXACT
    windows = windows_in(evidence, attempt, exact, unseen, False, f"The confirmation of {candidate}")
    if windows is not None:
        told["windows"] = windows
    difference = first_of_all(found, batches)
    return status, judged["grade"], told | {"grade": judged["grade"], "difference": difference, "comparison": found}


def _compare(evidence: Evidence, record: dict[str, Any], what: str, required: set[str]) -> Comparison:
    """Compare the traces of a record with the frozen ones, after checking that they are whole."""
    sets = record["sets"]
    if record["traces_digest"] != digest(sets):
        raise Inconsistent(f"The traces of {what} do not have the digest recorded next to them.")
    if not sets or not required <= set(sets) or not set(sets) <= set(evidence.frozen["sets"]):
        raise Inconsistent(f"The traces of {what} do not cover the prompt sets that they must.")
    try:
        return compare_sets(evidence.frozen["sets"], sets)
    except ValueError as error:
        raise Inconsistent(f"The traces of {what} cannot be compared: {error}.") from error
