"""Is a receipt true to its evidence? Every digest is recomputed and the receipt is derived again, byte for byte.

Works on ``artifacts/`` and on any copy laid out in the same way, without torch and without a GPU; only ``rerun`` needs those.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from exactgraph.canonical import canonical_bytes, file_digest, read_json
from exactgraph.protocol.compare import compare_sets, first_difference, grade, sentence
from exactgraph.protocol.grades import BIT_IDENTICAL
from exactgraph.receipts.evidence import MODEL, Inconsistent, locate
from exactgraph.receipts.schema import problems
from exactgraph.receipts.statement import derive
from exactgraph.receipts.verdict import VALIDATION_SET
from exactgraph.refusal import Refused, UserError
from exactgraph.sources.manifest import check, weights_digest

Rerun = Callable[[Path, str], dict[str, list[dict[str, Any]]]]
"""Runs a confirmed candidate in a fresh process: takes the key folder and the candidate's id, returns traces by prompt set.
Raises :class:`Refused` or :class:`UserError` where this machine cannot, for example because its GPU is another one."""


@dataclass
class VerifyResult:
    """``ok`` is the answer; ``lines`` say in sentences what was checked, each beginning with yes, no or note."""

    ok: bool = True
    lines: list[str] = field(default_factory=list)

    def yes(self, text: str) -> None:
        self.lines.append(f"yes: {text}")

    def no(self, text: str) -> None:
        self.ok = False
        self.lines.append(f"no: {text}")

    def note(self, text: str) -> None:
        self.lines.append(f"note: {text}")


def verify(receipt_path: Path, rerun: Rerun | None = None) -> VerifyResult:
    """Check a receipt against the evidence next to it, and with ``rerun`` against a fresh process on this machine."""
    result = VerifyResult()
    receipt = _check_evidence(receipt_path, result)
    if receipt is None:
        return result
    _check_weights(receipt_path.parent, result)
    if rerun is not None and result.ok:
        _check_rerun(receipt_path.parent, receipt["predicate"], rerun, result)
    return result


def verify_evidence(receipt_path: Path) -> VerifyResult:
    """:func:`verify` without the weights' own bytes, for whoever holds the weights and digests those."""
    result = VerifyResult()
    _check_evidence(receipt_path, result)
    return result


def _check_evidence(receipt_path: Path, result: VerifyResult) -> dict[str, Any] | None:
    """The receipt, or None where there is none to go on with."""
    receipt = _read(receipt_path, result)
    if receipt is None:
        return None
    _check_files(receipt_path.parent, receipt["predicate"]["evidence"], result)
    if not result.ok:
        return None
    _check_derivation(receipt_path.parent, receipt, result)
    return receipt


def _read(path: Path, result: VerifyResult) -> dict[str, Any] | None:
    """The receipt, or None with the reason in ``result`` where it is not one in canonical form."""
    try:
        content = path.read_bytes()
    except OSError as error:
        result.no(f"the receipt {path} cannot be read: {error.strerror}")
        return None
    try:
        receipt: dict[str, Any] = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        result.no(f"the receipt is not JSON: {error}")
        return None
    for problem in problems(receipt):
        result.no(f"the receipt does not conform to its schema: {problem}")
    if canonical_bytes(receipt) != content:
        result.no("the receipt's bytes are not the canonical form of what it says")
    if not result.ok:
        return None
    result.yes("the receipt is canonical and conforms to its schema")
    return receipt


def _check_files(key_dir: Path, recorded: dict[str, str], result: VerifyResult) -> None:
    for name, expected in sorted(recorded.items()):
        path = locate(key_dir, name)
        if not path.is_file():
            result.no(f"the evidence file {name} is missing")
        elif file_digest(path) != expected:
            result.no(f"the evidence file {name} is not the one that the receipt was made from: its SHA-256 differs")
    if result.ok:
        result.yes(f"all {len(recorded)} evidence files have the recorded SHA-256")


def _check_derivation(key_dir: Path, receipt: dict[str, Any], result: VerifyResult) -> None:
    try:
        derived = derive(key_dir)
    except Inconsistent as error:
        result.no(f"no receipt follows from the evidence: {error}")
        return
    if canonical_bytes(derived) == canonical_bytes(receipt):
        result.yes("keys, traces and verdicts recomputed from the evidence give this receipt, byte for byte")
        return
    fields = [name for name in receipt["predicate"] if derived["predicate"].get(name) != receipt["predicate"][name]]
    where = ", ".join(fields) or "the subject"
    result.no(f"the evidence gives another receipt (it differs in {where}): altered, or made by another exactgraph")


def _check_weights(key_dir: Path, result: VerifyResult) -> None:
    """The weights themselves, where they are; a bundle of evidence comes without them."""
    manifest = locate(key_dir, MODEL)
    folder = manifest.parent / "model"
    if not folder.is_dir():
        result.note("the weights are not here, so their digests were not recomputed")
        return
    described = read_json(manifest)
    found = check(folder, described)
    if not found and weights_digest(sorted(folder.rglob("*.safetensors"))) != described["weights_digest"]:
        found = ["The tensors do not have the digest that the manifest says."]
    for problem in found:
        result.no(f"the weights: {problem}")
    if not found:
        result.yes("the model's files and its tensors have the digests of its manifest")


def _check_rerun(key_dir: Path, predicate: dict[str, Any], rerun: Rerun, result: VerifyResult) -> None:
    """Confirm once more, on everything that validation never saw."""
    candidate = predicate["confirmation"]["confirmed"]
    if candidate is None:
        result.note("the receipt confirms no candidate, so there is nothing to run again")
        return
    frozen = read_json(key_dir / "frozen.json")["sets"]
    try:
        traces = rerun(key_dir, candidate)
        comparison = compare_sets(frozen, traces)
    except (Refused, UserError, ValueError) as error:
        result.no(f"the confirmation of {candidate} could not be run again: {error}")
        return
    missing = set(frozen) - {VALIDATION_SET} - set(traces)
    reached, difference = grade(comparison), first_difference(comparison)
    if missing:
        result.no(f"the confirmation of {candidate} was run again without {', '.join(sorted(missing))}")
    elif reached is None or (predicate["candidates"][candidate]["grade"] == BIT_IDENTICAL and reached != BIT_IDENTICAL):
        what = sentence(difference) if difference else "it gave no traces"
        result.no(f"run again, {candidate} did not reproduce the baseline: {what}")
    else:
        result.yes(f"run again in a fresh process, {candidate} was {reached} on {comparison['of']} prompts")
