"""What a receipt says of each candidate, in the order and the words of a report. Only the receipt is read."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import shorten
from typing import Any, cast

from exactgraph.protocol.compare import Difference

# The rungs in the order in which they were found; a name of a candidate that is not here stands after them.
RUNGS = {
    "C022": "MLP graphs",
    "C023": "fixed decode graphs",
    "C024": "compound norm + MLP",
    "C025": "grouped norm + QKV",
    "C026": "shared prefill norm",
    "step": "whole decode step",
    "static": "static cache",
    "static-compile": "static cache, compiled",
    "compile": "torch.compile",
}
CONTROLS = {
    "null": "eager itself, treated like a candidate",
    "wrong-ulp": "eager with one rounding changed",
    "wrong-late": "eager with a fault where validation does not look",
}
VERDICTS = {
    "confirmed": "confirmed",
    "ranked": "ranked, not tried",
    "exact": "exact, not tried",
    "not-faster": "exact, not faster",
    "rejected": "rejected at validation",
    "mismatch": "rejected at confirmation",
    "refused": "refused",
    "failed": "failed",
    "skipped": "not run",
    "baseline-moved": "eager moved under it",
    "caught": "caught at confirmation",
    "uncaught": "not caught",
}
_LONGEST = 1200  # an error's text may be anything


@dataclass(frozen=True)
class Candidate:
    """A candidate's part of a receipt; ``attempt`` is its confirmation, where it had one."""

    name: str
    record: dict[str, Any]
    attempt: dict[str, Any] | None

    @property
    def title(self) -> str:
        """What it does, or nothing for a name that is not known here."""
        return RUNGS.get(self.name, "")

    @property
    def verdict(self) -> str:
        return str(self.record["verdict"])

    @property
    def timing(self) -> dict[str, Any] | None:
        return cast("dict[str, Any] | None", self.record["timing"])


def candidates(predicate: dict[str, Any], control: bool) -> list[Candidate]:
    """The controls, or the proposed candidates in the order of the ladder."""
    attempts = {attempt["candidate"]: attempt for attempt in predicate["confirmation"]["attempts"]}
    places = {name: place for place, name in enumerate([*RUNGS, *CONTROLS])}
    found = [
        Candidate(name, record, attempts.get(name))
        for name, record in predicate["candidates"].items()
        if record["control"] == control
    ]
    return sorted(found, key=lambda candidate: (places.get(candidate.name, len(places)), candidate.name))


def rehearsal(predicate: dict[str, Any]) -> bool:
    return bool(predicate["protocol"]["whole"]["rehearsal"])


def equal(comparison: dict[str, Any] | None) -> str:
    """Equal answers of all answers."""
    return f"{comparison['matches']}/{comparison['of']}" if comparison else "-"


def equal_logits(comparison: dict[str, Any] | None) -> str:
    """Steps whose logits had equal bits, of all steps."""
    return f"{comparison['logits_equal']}/{comparison['logits_of']}" if comparison else "-"


def why(candidate: Candidate) -> str:
    """Where a candidate left the baseline, or why there was nothing to compare; empty where it did as eager does."""
    parts = _differences("At validation", candidate.record["comparison"])
    attempt = candidate.attempt
    if attempt is not None and attempt["status"] != "matched":
        parts += _differences("At confirmation", attempt["comparison"]) or [sentence(attempt["why"])]
    reason = candidate.record["why"]
    if not parts and reason:
        parts = [sentence(reason)]
    if candidate.verdict == "rejected" and candidate.record["grade"] is not None:
        parts.append(
            f"Its construction promises {candidate.record['claims']} answers; these were {candidate.record['grade']}."
        )
    return " ".join(parts)


def _differences(when: str, comparison: dict[str, Any] | None) -> list[str]:
    if comparison is None:
        return []
    token, logits = comparison["first_token_difference"], comparison["first_logits_difference"]
    parts = []
    if token:
        parts.append(f"{when}, {difference(token)}.")
    if logits and (not token or (logits["prompt"], logits["step"]) != (token["prompt"], token["step"])):
        words = difference(logits)
        parts.append(f"{words[0].upper()}{words[1:]}." if token else f"{when}, {words}.")
    return parts


def difference(found: Difference) -> str:
    """A first difference in words."""
    where = f"at prompt {found['prompt']}, step {found['step']}"
    margin = "" if found["margin"] is None else f" (there eager's best two logits are {found['margin']:.4g} apart)"
    if found["kind"] == "logits":
        return f"the first logits with other bits are {where}{margin}"
    if found["kind"] == "length":
        return f"one answer ends where the other goes on, {where}{margin}"
    return f"the first other token is {where}: {found['got']}, where eager has {found['expected']}{margin}"


def sentence(words: str | None) -> str:
    """A reason that was written down, at a length that can be read."""
    return shorten(words or "No reason was written down.", _LONGEST, placeholder=" …")


def gain(timing: dict[str, Any]) -> str:
    """Decode tokens a second against those of eager in the same process."""
    return f"{timing['candidate_tok_s'] / timing['eager_tok_s'] - 1:+.1%}"


def percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def count(number: int, one: str, more: str | None = None) -> str:
    """A number with its noun."""
    return f"{number} {one if number == 1 else more or one + 's'}"
