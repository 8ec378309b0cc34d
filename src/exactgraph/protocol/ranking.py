"""The order in which candidates are confirmed, from their validations. Pure JSON in and out."""

from __future__ import annotations

from typing import Any

Validation = dict[str, Any]


def rank(baseline: str, rehearsal: bool, validations: dict[str, Validation]) -> dict[str, Any]:
    """``{"status", "sentence", "order", "candidates"}``.

    ``status`` is None where something is to be confirmed, else the final status. ``order`` starts with the controls that are
    right in validation and must be caught by confirmation, then the candidates: fastest first on a GPU; in a rehearsal,
    where nothing is timed, the last rung of the ladder first.
    """
    verdicts = {name: _verdict(validation, rehearsal) for name, validation in validations.items()}
    candidates = {
        name: {
            "control": validation["control"],
            "verdict": verdicts[name],
            "grade": validation["grade"],
            # A rejected candidate's code is left out: an edit to it must not touch the confirmation of another.
            "code": validation["code"] if verdicts[name] == "ranked" else None,
        }
        for name, validation in validations.items()
    }
    ranked = [name for name in validations if verdicts[name] == "ranked"]
    real = [name for name in ranked if not validations[name]["control"]]
    if rehearsal:
        real.reverse()
    else:
        real.sort(key=lambda name: validations[name]["timing"]["ratio"], reverse=True)
    status, sentence = _status(baseline, rehearsal, verdicts, validations, real)
    order = [] if status else [name for name in ranked if validations[name]["control"]] + real
    return {"status": status, "sentence": sentence, "order": order, "candidates": candidates}


def _verdict(validation: Validation, rehearsal: bool) -> str:
    status: str = validation["status"]
    if status != "exact":
        return status
    timing = validation["timing"]
    if validation["candidate"] == "null":
        # Exact by definition; never a candidate for confirmation.
        return "exact" if rehearsal else "faster" if timing and timing["faster"] else "not-faster"
    if rehearsal or validation["control"] or timing["faster"]:
        return "ranked"
    return "not-faster"


def _status(
    baseline: str, rehearsal: bool, verdicts: dict[str, str], validations: dict[str, Validation], real: list[str]
) -> tuple[str | None, str]:
    if baseline != "frozen":
        return baseline, "Eager does not reproduce itself under any attention backend that was tried."
    if "baseline-moved" in verdicts.values():
        return "baseline-unstable", "Eager left its own frozen baseline in a later process."
    wrong = _controls(verdicts, rehearsal)
    if wrong is not None:
        return "controls-failed", wrong
    if real:
        return None, f"To be confirmed: {', '.join(real)}."
    exact = [name for name, verdict in verdicts.items() if verdict == "not-faster" and not validations[name]["control"]]
    if exact:
        return "not-faster", f"Exact, but not faster than eager: {', '.join(exact)}."
    return "no-exact-candidate", "No candidate reproduced the baseline."


def _controls(verdicts: dict[str, str], rehearsal: bool) -> str | None:
    wanted = "exact" if rehearsal else "not-faster"
    if verdicts["null"] != wanted:
        return (
            f"The control null, eager itself, ended {verdicts['null']}; it must end {wanted}. Do not trust this host's timing."
        )
    if verdicts["wrong-ulp"] != "rejected":
        return f"The control wrong-ulp, a changed rounding, ended {verdicts['wrong-ulp']}; validation must reject it."
    if verdicts["wrong-late"] != "ranked":
        return f"The control wrong-late ended {verdicts['wrong-late']} at validation; it must get to confirmation."
    return None
