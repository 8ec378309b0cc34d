"""What the profile of eager's decode step says, held against the baseline that it was taken under and the plans after it.

Its figures are measured once and follow from nothing else. What can be checked is that they fit each other, and that exactly
those candidates were left unbuilt that by these figures cannot matter.
"""

from __future__ import annotations

import math
from typing import Any

from exactgraph.profile.reach import skips
from exactgraph.receipts.evidence import Evidence, Inconsistent

CANNOT_MATTER = "cannot-matter"
PROFILED, SKIPPED = "profiled", "skipped"
_FIELDS = ("code", "status", "why", "attention", "prompt", "steps", "step_ms", "gpu", "kinds", "reach", "order", "skip")
_TOLERANCE = 0.01  # of the whole: the parts may have been rounded


def profile(evidence: Evidence) -> dict[str, Any]:
    """The receipt's part on the profile. Raises :class:`Inconsistent` where the evidence contradicts it."""
    found = evidence.profile
    if (found["status"] == SKIPPED) != (evidence.frozen["status"] != "frozen"):
        raise Inconsistent(f"profile.json says {found['status']}, and frozen.json {evidence.frozen['status']}.")
    if found["status"] == PROFILED:
        _check_figures(evidence)
    _check_skips(evidence)
    return {"sha256": evidence.digests["profile.json"]} | {name: found[name] for name in _FIELDS}


def _check_figures(evidence: Evidence) -> None:
    found = evidence.profile
    if found["attention"] != evidence.frozen["attention"]:
        raise Inconsistent(
            f"Eager was profiled under {found['attention']} attention, its baseline is frozen under "
            f"{evidence.frozen['attention']}."
        )
    shares = math.fsum(kind["share"] for kind in found["kinds"].values())
    if not math.isclose(shares, 1, abs_tol=_TOLERANCE):
        raise Inconsistent(f"The kinds of work in profile.json sum to {shares:.3f} of the host's time, not to all of it.")
    step, gpu = found["step_ms"], found["gpu"]
    if evidence.protocol["rehearsal"] != (step is None):
        raise Inconsistent("A rehearsal times nothing and every other run does; profile.json has it the other way round.")
    if gpu is not None and step is not None:
        parts = math.fsum(gpu[name] for name in ("busy_ms", "launch_gap_ms", "host_ms"))
        if not math.isclose(parts, step, rel_tol=_TOLERANCE):
            raise Inconsistent(f"The parts of the step in profile.json sum to {parts:.3f} ms; the step takes {step:.3f} ms.")


def _check_skips(evidence: Evidence) -> None:
    """A candidate was left unbuilt as one that cannot matter exactly where the profile says so, and for that reason."""
    if evidence.profile["skip"] != skips(evidence.profile["reach"]):
        raise Inconsistent("profile.json leaves out other candidates than its figures show to be without effect.")
    for candidate in evidence.candidates:
        refusal, skip = evidence.plan(candidate).get("refusal"), evidence.profile["skip"].get(candidate)
        refused = refusal["sentence"] if refusal and refusal["reason"] == CANNOT_MATTER else None
        if refused != skip:
            raise Inconsistent(f"The plan of {candidate} and profile.json disagree on whether, and why, it cannot matter.")
        if skip is not None and evidence.validation(candidate)["status"] != SKIPPED:
            raise Inconsistent(f"Candidate {candidate} was not built, but its validation does not say {SKIPPED}.")
