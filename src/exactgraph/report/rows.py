"""The figures of receipts as rows, for a file next to the receipts that they come from."""

from __future__ import annotations

from typing import Any

from exactgraph.canonical import short
from exactgraph.refusal import UserError


def rows(receipts: list[dict[str, Any]]) -> dict[str, Any]:
    """``{"code", "device", "environment", "rows"}`` of receipts of one device and one environment.

    ``code`` is the digest of all stage digests that the receipts record. A row has ``id`` (model and candidate),
    ``precision``, ``verdict``, ``matches`` of ``of``, ``grade`` and, where timed, ``eager_tok_s``, ``tok_s`` (decode tokens a
    second), ``ratio`` (whole calls) with ``interval``, and ``share_of_floor`` (weight bytes read a second over the copy
    bandwidth).
    """
    predicates = [receipt["predicate"] for receipt in receipts]
    places = {(predicate["device"]["id"], predicate["environment"]["key"]) for predicate in predicates}
    if len(places) != 1:
        raise UserError(f"The receipts are of {len(places)} devices and environments; rows belong to one.")
    ((device, environment),) = places
    return {
        "code": short([_codes(predicate) for predicate in predicates]),
        "device": device,
        "environment": environment,
        "rows": [row for predicate in predicates for row in _rows(predicate)],
    }


def _codes(predicate: dict[str, Any]) -> dict[str, Any]:
    return {
        "baseline": predicate["baseline"]["code"],
        "profile": predicate["profile"]["code"],
        "candidates": {
            name: [candidate["plan"]["code"], candidate["validation"]["code"]]
            for name, candidate in predicate["candidates"].items()
        },
        "ranking": predicate["ranking"]["code"],
        "confirmation": predicate["confirmation"]["code"],
    }


def _rows(predicate: dict[str, Any]) -> list[dict[str, Any]]:
    found = []
    for name, candidate in predicate["candidates"].items():
        comparison, timing = candidate["comparison"] or {}, candidate["timing"] or {}
        found.append(
            {
                "id": f"{predicate['model']['model']}/{name}",
                "precision": predicate["precision"],
                "verdict": candidate["verdict"],
                "matches": comparison.get("matches"),
                "of": comparison.get("of"),
                "grade": candidate["grade"],
                "eager_tok_s": timing.get("eager_tok_s"),
                "tok_s": timing.get("candidate_tok_s"),
                "ratio": timing.get("ratio"),
                "interval": timing.get("interval"),
                "share_of_floor": candidate["measured"].get("share_of_floor"),
            }
        )
    return found
