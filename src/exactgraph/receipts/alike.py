"""Do two receipts say the same? For two GPUs of one kind, or one GPU on two days.

Everything that no clock and no scheduling decides has to be equal: device, environment, weights, protocol, code, the frozen
traces, each plan, and the traces and verdict of each candidate. UUIDs, hosts, processes and timings are told and not compared.
Where something did not reproduce itself within one of the two (a backend that no baseline was frozen under, a candidate that
was rejected), it cannot be compared between them either. Works without torch and without a GPU.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from exactgraph.canonical import read_json
from exactgraph.protocol.compare import compare_sets, first_difference, sentence
from exactgraph.receipts.evidence import Evidence, load
from exactgraph.receipts.verify import VerifyResult, verify_evidence

#: Statuses of a validation that say that the candidate's answers are eager's, so that they have to be each other's too.
_EXACT = "exact"
_MATCHED = "matched"
#: Of what a validation measured, what is counted.
_COUNTED = ("captured_steps", "eager_steps", "emulated", "graphs", "step_weight_bytes")


def alike(receipt: Path, other: Path) -> VerifyResult:
    """Hold two receipts and the evidence next to them against each other; both have to be true to their evidence."""
    result = VerifyResult()
    for path in (receipt, other):
        found = verify_evidence(path)
        if not found.ok:
            for line in found.lines:
                if line.startswith("no: "):
                    result.no(f"{path} does not verify: {line.removeprefix('no: ')}")
    if not result.ok:
        return result
    pair = _Pair(load(receipt.parent), load(other.parent), result)
    pair.same_place()
    if result.ok:
        pair.same_baseline()
        pair.same_candidates()
        pair.same_confirmation()
    for path in (receipt, other):
        _tell(path, result)
    return result


class _Pair:
    """The evidence of both; answers go to ``result``."""

    def __init__(self, one: Evidence, other: Evidence, result: VerifyResult) -> None:
        self.one, self.other, self.result = one, other, result

    def same_place(self) -> None:
        for what in ("model", "environment", "protocol"):
            ours, theirs = getattr(self.one, what), getattr(self.other, what)
            if ours == theirs:
                self.result.yes(f"one {what}")
            else:
                names = sorted(name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name))
                self.result.no(f"the {what} differs in {', '.join(names)}")

    def same_baseline(self) -> None:
        ours, theirs = self.one.frozen, self.other.frozen
        if not self._same("the baseline", ours, theirs, "status", "attention", "code"):
            return
        if ours["status"] != "frozen":
            self.result.note("no baseline was frozen, so there is nothing to compare with")
            return
        self._same_traces(f"the baseline under {ours['attention']}", ours["sets"], theirs["sets"])

    def same_candidates(self) -> None:
        if self.one.candidates != self.other.candidates:
            self.result.no(f"the candidates differ: {', '.join(self.one.candidates)}; {', '.join(self.other.candidates)}")
            return
        for name in self.one.candidates:
            plans = self.one.plan(name), self.other.plan(name)
            if "skipped" in (plans[0]["status"], plans[1]["status"]):
                # What may be left out rests on the measured profile.
                self.result.note(f"{name}: {' and '.join(plan['status'] for plan in plans)}, which rests on timings")
                continue
            self._same_candidate(name, *plans)

    def _same_candidate(self, name: str, plan: dict[str, Any], other_plan: dict[str, Any]) -> None:
        ours, theirs = self.one.validation(name), self.other.validation(name)
        same = self._same(f"the plan of {name}", plan, other_plan, "code", "status", "claims", "decisions")
        if not same or not self._same(f"the validation of {name}", ours, theirs, "code", "status", "grade"):
            return
        if ours["status"] != _EXACT:
            self.result.note(f"{name}: {ours['status']} in both; only answers equal to eager's have to be each other's")
            return
        counted, others = ({key: side["measured"].get(key) for key in _COUNTED} for side in (ours, theirs))
        if self._same(f"the validation of {name}", counted, others, *_COUNTED):
            self._same_traces(f"{name} at validation", ours["sets"], theirs["sets"])
            self._same_batches(f"{name} at validation", ours, theirs)
            self._same_windows(f"{name} at validation", ours, theirs)

    def same_confirmation(self) -> None:
        both = [
            {attempt["candidate"]: attempt for attempt in side.confirmation["attempts"]} for side in (self.one, self.other)
        ]
        for name in both[0]:
            if name not in both[1]:
                self.result.note(f"{name}: confirmed in one of the two only; whose turn it is rests on timings")
                continue
            ours, theirs = both[0][name], both[1][name]
            if not self._same(f"the confirmation of {name}", ours, theirs, "status", "grade"):
                continue
            if ours["status"] == _MATCHED or ours["control"]:
                self._same_traces(f"{name} at confirmation", ours["sets"], theirs["sets"])
                self._same_batches(f"{name} at confirmation", ours, theirs)
                self._same_windows(f"{name} at confirmation", ours, theirs)

    def _same_batches(self, what: str, ours: dict[str, Any], theirs: dict[str, Any]) -> None:
        for one, other in zip(ours.get("batches", []), theirs.get("batches", []), strict=True):
            batch = f"{what} in batches of {one['batch']}"
            if self._same(batch, one, other, "served"):
                self._same_traces(batch, one["candidate"], other["candidate"])

    def _same_windows(self, what: str, ours: dict[str, Any], theirs: dict[str, Any]) -> None:
        """Hidden states and tokens by every way; which of them is faster is told by each receipt alone."""
        if "windows" not in ours:
            return
        one, other = ours["windows"], theirs["windows"]
        different = [
            f"{part} of {name}"
            for name in one["sets"]
            for part in ("windows", "expected", "states", "tokens")
            if one["sets"][name][part] != other["sets"][name][part]
        ]
        if one["refused"] != other["refused"]:
            different.append("what is refused")
        if different:
            self.result.no(f"{what}, windows ahead of decoding: other {', '.join(different)}")
        else:
            self.result.yes(f"{what}, windows ahead of decoding: equal hidden states and tokens by every way")

    def _same(self, what: str, ours: dict[str, Any], theirs: dict[str, Any], *names: str) -> bool:
        different = [name for name in names if ours[name] != theirs[name]]
        for name in different:
            self.result.no(f"{what} differs in {name}: {ours[name]}; {theirs[name]}")
        return not different

    def _same_traces(self, what: str, ours: dict[str, Any], theirs: dict[str, Any]) -> None:
        comparison = compare_sets(ours, theirs)
        difference = first_difference(comparison)
        if difference is None and ours == theirs:
            self.result.yes(f"{what}: {comparison['of']} answers, {comparison['logits_of']} logits, equal bits")
        elif difference is None:
            self.result.no(f"{what}: equal tokens and logits, but other margins or lengths of prompts")
        else:
            self.result.no(f"{what}: {sentence(difference)}")


def _tell(path: Path, result: VerifyResult) -> None:
    """What the two need not have in common."""
    predicate = read_json(path)["predicate"]
    gpus = ", ".join(predicate["gpus"]) or "no GPU"
    ratios = [
        f"{name} {candidate['timing']['ratio']:.2f}x"
        for name, candidate in predicate["candidates"].items()
        if candidate["timing"] is not None
    ]
    result.note(f"{path}: {predicate['status']} on {gpus}; {', '.join(ratios) or 'nothing was timed'}")
