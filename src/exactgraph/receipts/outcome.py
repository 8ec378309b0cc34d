"""The final status of a run and its sentence, from what the evidence shows of each candidate."""

from __future__ import annotations

from dataclasses import dataclass

from exactgraph.candidates.registry import CONTROLS
from exactgraph.protocol.compare import sentence as difference_sentence
from exactgraph.protocol.ranking import rank
from exactgraph.receipts.evidence import Evidence, Inconsistent
from exactgraph.receipts.verdict import Finding


@dataclass(frozen=True)
class Outcome:
    """``status`` is the slug that programs compare, ``sentence`` is for people, ``confirmed`` the candidate or None."""

    status: str
    sentence: str
    confirmed: str | None = None


def conclude(evidence: Evidence, findings: dict[str, Finding]) -> Outcome:
    """The status that the evidence leads to. Raises :class:`Inconsistent` where ranking or confirmation say otherwise."""
    missing = [name for name in CONTROLS if name not in findings]
    if missing:
        raise Inconsistent(f"The control {missing[0]} was not run; without it nothing shows that the gate works.")
    null = findings["null"]
    if null.exact and null.faster is None and not evidence.protocol["rehearsal"]:
        raise Inconsistent("Eager itself, as the control null, was not timed; nothing shows that the timing works.")
    ended = _check_ranking(evidence, findings)
    outcome = ended or _walk(evidence, findings)
    says = evidence.confirmation["status"], evidence.confirmation["confirmed"]
    shown = "skipped" if ended else "confirmed" if outcome.confirmed else outcome.status, outcome.confirmed
    if says != shown or (ended and evidence.confirmation["attempts"]):
        raise Inconsistent(f"confirmation.json says {says[0]} ({says[1]}); the evidence shows {shown[0]} ({shown[1]}).")
    return outcome


def verdict(finding: Finding, outcome: Outcome) -> str:
    """One word for a table: what became of a candidate in this run."""
    if not finding.exact:
        return finding.validated
    if finding.confirmed == "matched":
        return "uncaught" if finding.control else "confirmed"
    if finding.confirmed is not None:
        return "caught" if finding.control and finding.confirmed == "mismatch" else finding.confirmed
    if finding.faster is None:
        return "exact"
    return "ranked" if finding.faster else "not-faster"


def _check_ranking(evidence: Evidence, findings: dict[str, Finding]) -> Outcome | None:
    """Rank again, and hold ranking.json against that; returns the outcome where nothing was to be confirmed.

    In a rehearsal the order among candidates is that of the configuration, which the evidence does not hold.
    """
    rehearsal, written = evidence.protocol["rehearsal"], evidence.ranking
    validations = {name: evidence.validation(name) for name in evidence.candidates}
    ranked = rank(evidence.frozen["status"], rehearsal, validations)
    if written["status"] != ranked["status"] or written["candidates"] != ranked["candidates"]:
        raise Inconsistent(f"ranking.json says {written['status']}, which is not what the validations show.")
    order = written["order"]
    controls = [findings[name].control for name in order]
    ratios = [] if rehearsal else [validations[name]["timing"]["ratio"] for name in order if not findings[name].control]
    if sorted(order) != sorted(ranked["order"]) or controls != sorted(controls, reverse=True):
        raise Inconsistent("ranking.json does not order exactly the controls and candidates that are to be confirmed.")
    if ratios != sorted(ratios, reverse=True):
        raise Inconsistent("ranking.json does not put the fastest candidate first.")
    if ranked["status"] is None:
        return None
    unstable = evidence.frozen["status"] != "frozen"
    return Outcome(ranked["status"], _unstable_sentence(evidence) if unstable else ranked["sentence"])


def _walk(evidence: Evidence, findings: dict[str, Finding]) -> Outcome:
    """Walk down the ranking as confirmation did: the controls must be caught first, then the first match wins."""
    tried: list[str] = []
    outcome = None
    for name in evidence.ranking["order"]:
        finding = findings[name]
        tried.append(name)
        if finding.control and finding.confirmed != "mismatch":
            happened = {"matched": "was confirmed", "failed": "failed"}.get(finding.confirmed or "", "was not tried")
            sentence = f"The control {name} must be caught at confirmation, but it {happened} there."
            outcome = Outcome("controls-failed", sentence)
            break
        if not finding.control and finding.confirmed == "matched":
            outcome = _confirmed(evidence, finding)
            break
    if tried != [attempt["candidate"] for attempt in evidence.confirmation["attempts"]]:
        raise Inconsistent("Confirmation did not walk down the ranking until one candidate matched.")
    return outcome or Outcome("confirmation-mismatch", _mismatch_sentence(findings))


def _confirmed(evidence: Evidence, finding: Finding) -> Outcome:
    device, name = evidence.environment["device"]["id"], finding.candidate
    unseen = "prompts and lengths that validation never saw"
    if evidence.protocol["rehearsal"]:
        sentence = (
            f"In a rehearsal on {device}, {name} reproduced the baseline ({finding.grade}), also on {unseen}; "
            "nothing was timed and nothing is optimized."
        )
        return Outcome("rehearsal", sentence, name)
    ratio = evidence.validation(name)["timing"]["ratio"]
    sentence = (
        f"{name} is {ratio:.2f} times as fast as eager on {device} and {finding.grade} with it, also in a fresh process "
        f"on {unseen}."
    )
    return Outcome("optimized", sentence, name)


def _unstable_sentence(evidence: Evidence) -> str:
    tried = ", ".join(attempt["attention"] for attempt in evidence.frozen["attempts"])
    differences = [attempt["difference"] for attempt in evidence.frozen["attempts"] if attempt["difference"]]
    where = f": {difference_sentence(differences[0])}" if differences else ""
    return f"Eager does not reproduce itself from process to process under any attention backend tried ({tried}){where}."


def _mismatch_sentence(findings: dict[str, Finding]) -> str:
    parts = []
    for finding in findings.values():
        if finding.attempt and not finding.control:
            difference = finding.attempt["difference"]
            parts.append(f"{finding.candidate}: {difference_sentence(difference) if difference else 'failed'}")
    return "Exact at validation, but not confirmed by a fresh process: " + "; ".join(parts) + "."
