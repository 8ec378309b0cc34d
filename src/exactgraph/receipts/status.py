"""Which receipts there are, and whether each still speaks about the present machine, libraries and code."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson

from exactgraph.canonical import read_json, short
from exactgraph.receipts.evidence import Inconsistent
from exactgraph.receipts.statement import PREDICATE_TYPE, RECEIPT, derive
from exactgraph.refusal import UserError
from exactgraph.workflow.config import Config, has_token_ids, protocol_for, task, wanted
from exactgraph.workflow.stage_digest import stage_digest

CURRENT, STALE, MISSING = "current", "stale", "missing"
UNKNOWN = "?"
_PLACES = f"*@*/*/*/*/{RECEIPT}"
#: Of the facts of an environment, those by which people know it.
_TELLING = ("torch", "transformers", "driver")

StageDigest = Callable[[str, str | None], str]
"""The digest that a stage's code has now, given the stage and the candidate that it is about (or None)."""


@dataclass(frozen=True)
class Row:
    """One receipt, found or missing. ``why`` holds a sentence part for each reason not to be ``current``.

    ``libraries`` and ``asked`` say in words what the keys of environment and protocol stand for, as far as that is known.
    """

    model: str
    device: str
    environment: str
    protocol: str
    status: str | None
    confirmed: str | None
    state: str
    why: list[str] = field(default_factory=list)
    receipt: str | None = None
    libraries: str = UNKNOWN
    asked: str = UNKNOWN

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def status(root: Path, config: Config, stage_digest: StageDigest = stage_digest) -> list[Row]:
    """A row for each receipt below ``root``, and for each that ``config`` wants and that is not there.

    The present state of a slot is what its last probe found; in a folder of imported receipts, where none was probed, receipts
    are held against their evidence and the code alone. Receipts of what the configuration no longer asks for are
    listed too: they still say what they say.
    """
    probes = {path.parent.name: read_json(path) for path in sorted(root.glob("slots/*/probe.json"))}
    receipts = sorted(root.glob(_PLACES))
    rows = [_row(path, probes.values(), stage_digest) for path in receipts]
    return rows + _missing(root, config, probes, receipts)


def _row(path: Path, probes: Collection[dict[str, Any]], stage_digest: StageDigest) -> Row:
    model, device, environment, protocol = path.parts[-5:-1]
    try:
        receipt = read_json(path)
        if receipt["predicateType"] != PREDICATE_TYPE:
            raise ValueError(f"its type is {receipt['predicateType']}")
        predicate = receipt["predicate"]
        why = _altered(path.parent, receipt) + _moved_environment(predicate, probes) + _moved_code(predicate, stage_digest)
        outcome, confirmed = predicate["status"], predicate["confirmation"]["confirmed"]
        libraries, asked = _libraries(predicate["environment"]["facts"]), _asked(predicate["protocol"]["whole"])
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        why, outcome, confirmed = [f"not readable as a receipt ({error})"], None, None
        libraries, asked = UNKNOWN, UNKNOWN
    state = STALE if why else CURRENT
    return Row(model, device, environment, protocol, outcome, confirmed, state, why, str(path), libraries, asked)


def _libraries(facts: dict[str, str]) -> str:
    return ", ".join(f"{name} {facts[name]}" for name in _TELLING if name in facts)


def _asked(protocol: dict[str, Any]) -> str:
    heldout = protocol["sets"]["heldout"]
    kind = "rehearsal, " if protocol["rehearsal"] else ""
    return f"{kind}{protocol['dtype']}, {len(heldout['prompts'])} held-out prompts x {heldout['new_tokens']} tokens"


def _altered(key_dir: Path, receipt: Any) -> list[str]:
    try:
        if derive(key_dir) == receipt:
            return []
    except Inconsistent as error:
        return [f"no receipt follows from its evidence: {str(error).rstrip('.')}"]
    return ["it is not what its evidence gives, altered or made by another exactgraph: exactgraph verify says where"]


def _moved_environment(predicate: dict[str, Any], probes: Collection[dict[str, Any]]) -> list[str]:
    """Which facts differ from those of the slot on the same device that is nearest; empty where some slot has them all."""
    if not probes:
        return []
    here = [probe for probe in probes if probe["device"]["id"] == predicate["device"]["id"]]
    if not here:
        return [f"no slot has the device {predicate['device']['id']} now"]
    return min((_differing(predicate["environment"]["facts"], probe["environment"]["facts"]) for probe in here), key=len)


def _differing(then: dict[str, str], now: dict[str, str]) -> list[str]:
    return [
        f"{fact} was {then.get(fact, 'absent')}, is {now.get(fact, 'absent')}"
        for fact in sorted(then.keys() | now.keys())
        if then.get(fact) != now.get(fact)
    ]


def _moved_code(predicate: dict[str, Any], stage_digest: StageDigest) -> list[str]:
    """Which stages' code is no longer what made the evidence."""
    stages: list[tuple[str, str | None, str]] = [
        ("baseline", None, predicate["baseline"]["code"]["baseline"]),
        ("freeze", None, predicate["baseline"]["code"]["freeze"]),
        ("profile", None, predicate["profile"]["code"]),
        ("rank", None, predicate["ranking"]["code"]),
        ("confirm", None, predicate["confirmation"]["code"]),
    ]
    for name, candidate in predicate["candidates"].items():
        stages += [("build", name, candidate["plan"]["code"]), ("validate", name, candidate["validation"]["code"])]
    why = []
    for stage, name, recorded in stages:
        try:
            moved = stage_digest(stage, name) != recorded
        except UserError:
            why.append(f"the package no longer has {name or stage}")
            continue
        if moved:
            why.append(f"the code of {stage} changed" + (f" for {name}" if name else ""))
    return list(dict.fromkeys(why))


def _missing(root: Path, config: Config, probes: dict[str, dict[str, Any]], receipts: list[Path]) -> list[Row]:
    """What the configuration wants and has no receipt, as far as probe and resolve have said where it would be."""
    rows: list[Row] = []
    for slot in config["devices"]:
        probe = probes.get(slot)
        for model in wanted(config, rehearsal=probe is not None and probe["rehearsal"]):
            row = _wanted_row(root, config, model, slot, probe)
            there = root / row.model / row.device / row.environment / row.protocol / RECEIPT
            if row not in rows and there not in receipts:  # slots with identical GPUs share their receipt
                rows.append(row)
    return rows


def _wanted_row(root: Path, config: Config, model: str, slot: str, probe: dict[str, Any] | None) -> Row:
    if probe is None:
        return Row(model, UNKNOWN, UNKNOWN, UNKNOWN, None, None, MISSING, [f"slot {slot} was not probed yet"])
    place = (probe["device"]["id"], probe["environment"]["key"])
    libraries = _libraries(probe["environment"]["facts"])
    refusal, source = probe["refusal"], root / "sources" / f"{model}.json"
    if refusal is not None:
        why = [refusal["sentence"].rstrip(".")]
        return Row(model, *place, UNKNOWN, refusal["reason"], None, MISSING, why, libraries=libraries)
    if not source.is_file():
        why = ["the model's source was not resolved yet"]
        return Row(model, *place, UNKNOWN, None, None, MISSING, why, libraries=libraries)
    resolved = read_json(source)
    name = f"{model}@{resolved['commit']}"
    try:
        token_ids, asked = has_token_ids(resolved), task(config, model)
        protocol = protocol_for(config, probe["precision"], probe["rehearsal"], token_ids, asked)
    except KeyError as lacking:
        why = [
            f"the configuration of the last run lacks {lacking.args[0]!r}, it is an older exactgraph's: a run writes it anew"
        ]
        return Row(name, *place, UNKNOWN, None, None, MISSING, why, libraries=libraries)
    why = ["no run has finished with this receipt"]
    return Row(name, *place, short(protocol), None, None, MISSING, why, libraries=libraries, asked=_asked(protocol))
