"""The receipt: an in-toto Statement that is a pure function of the evidence files.

No clock, no host, no present state of the machine enters it, so anyone who holds the evidence can derive the same bytes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from exactgraph.canonical import short, write_json
from exactgraph.receipts.evidence import Evidence, Inconsistent, load, run_folder
from exactgraph.receipts.outcome import Outcome, conclude, verdict
from exactgraph.receipts.profile import profile
from exactgraph.receipts.verdict import Finding, find
from exactgraph.receipts.windows import decision

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "urn:exactgraph:receipt:v1"
RECEIPT = "receipt.json"
_NOT_IN_RECEIPT = ("files", "prompts")  # of the manifest; the rest of it is the receipt's description of the model
_TIMING_FIELDS = ("eager_tok_s", "candidate_tok_s", "ratio", "interval", "confidence", "faster")


def derive(key_dir: Path) -> dict[str, Any]:
    """The receipt of a key folder. Raises :class:`Inconsistent` where the evidence is incomplete or contradicts itself."""
    try:
        evidence = load(key_dir)
        findings = find(evidence)
        return _statement(evidence, findings, conclude(evidence, findings))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, ArithmeticError) as error:
        # Evidence may be anybody's: a field that is missing or of another type is a finding about the files.
        problem = f"{type(error).__name__}: {error}"
        raise Inconsistent(f"The evidence in {key_dir} does not have the form that it must ({problem}).") from error


def write(key_dir: Path) -> dict[str, Any]:
    """Derive the receipt, check it against its schema and write it next to its evidence."""
    from exactgraph.receipts.schema import problems

    statement = derive(key_dir)
    found = problems(statement)
    if found:
        raise Inconsistent(f"The evidence in {key_dir} gives a receipt outside its schema: {'; '.join(found)}.")
    write_json(key_dir / RECEIPT, statement)
    return statement


def _statement(evidence: Evidence, findings: dict[str, Finding], outcome: Outcome) -> dict[str, Any]:
    model, environment = evidence.model, evidence.environment
    windows = decision(evidence, outcome.confirmed)
    return {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": f"{model['model']}@{model['commit']}", "digest": {"sha256": model["weights_digest"]}}],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "status": outcome.status,
            "sentence": outcome.sentence,
            "model": {name: value for name, value in model.items() if name not in _NOT_IN_RECEIPT},
            "device": environment["device"],
            "environment": environment["environment"],
            "precision": evidence.protocol["dtype"],
            "protocol": {"key": short(evidence.protocol), "whole": evidence.protocol},
            "gpus": _gpus(evidence),
            "baseline": _baseline(evidence),
            "profile": profile(evidence),
            "candidates": {name: _candidate(evidence, finding, outcome) for name, finding in findings.items()},
            "ranking": {
                "sha256": evidence.digests["ranking.json"],
                "code": evidence.ranking["code"],
                "order": evidence.ranking["order"],
            },
            "confirmation": {
                "sha256": evidence.digests["confirmation.json"],
                "code": evidence.confirmation["code"],
                "confirmed": outcome.confirmed,
                "attempts": [findings[a["candidate"]].attempt for a in evidence.confirmation["attempts"]],
                **({"windows": windows} if windows else {}),
            },
            "evidence": evidence.digests,
        },
    }


def _baseline(evidence: Evidence) -> dict[str, Any]:
    """The freeze, with the digests of the runs that it was frozen from, or of the default's where nothing reproduced."""
    frozen = evidence.frozen
    runs = evidence.runs(frozen["attention"] if frozen["status"] == "frozen" else "default")
    return {
        "status": frozen["status"],
        "attention": frozen["attention"],
        "pin": frozen["pin"],
        "attempts": frozen["attempts"],
        "traces_digest": frozen["traces_digest"],
        "runs": {name: evidence.digests[name] for name in runs},
        "frozen": evidence.digests["frozen.json"],
        "code": {"baseline": next(iter(runs.values()))["code"], "freeze": frozen["code"]},
    }


def _candidate(evidence: Evidence, finding: Finding, outcome: Outcome) -> dict[str, Any]:
    name = finding.candidate
    plan, validation = evidence.plan(name), evidence.validation(name)
    refusal, timing = plan.get("refusal"), validation.get("timing")
    return {
        "control": finding.control,
        "claims": plan["claims"],
        "verdict": verdict(finding, outcome),
        "why": validation.get("why") or (refusal["sentence"] if refusal else None),
        "grade": finding.grade,
        "comparison": finding.comparison,
        "timing": timing and {field: timing[field] for field in _TIMING_FIELDS} | {"pairs": len(timing["pairs"])},
        "measured": validation.get("measured") or {},
        **({"batches": finding.batches} if finding.batches else {}),
        **({"windows": finding.windows} if finding.windows else {}),
        "plan": {"sha256": evidence.digests[f"candidates/{name}/plan.json"], "code": plan["code"], "status": plan["status"]},
        "validation": {
            "sha256": evidence.digests[f"candidates/{name}/validation.json"],
            "code": validation["code"],
            "status": validation["status"],
        },
    }


def _gpus(evidence: Evidence) -> list[str]:
    """The UUIDs of the GPUs that any process of this evidence woke up on. They are evidence, not part of any key."""
    records: list[dict[str, Any]] = []
    for attempt in evidence.frozen["attempts"]:
        folder = run_folder(attempt["attention"])
        records += [evidence.values[name] for name in evidence.values if name.rpartition("/")[0] == folder]
    records += [evidence.profile, *(evidence.validation(name) for name in evidence.candidates)]
    records += evidence.confirmation["attempts"]
    uuids = {process["gpu_uuid"] for record in records if (process := record.get("process"))}
    return sorted(uuid for uuid in uuids if uuid)
