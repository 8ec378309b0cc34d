"""The evidence files of one key folder: read once, digested, and checked against each other.

Names are relative to the key folder, as receipts list them: ``frozen.json``, ``candidates/step/plan.json``,
``../environment.json``, ``../../../model.json``.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from exactgraph.canonical import digest, short
from exactgraph.refusal import UserError
from exactgraph.workflow.handoff import order_of, reference_of, skips_of

ENVIRONMENT = "../environment.json"
MODEL = "../../../model.json"
DEFAULT_ATTENTION = "default"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


class Inconsistent(UserError):
    """The evidence contradicts itself, or a part of it is missing: no receipt can be derived from it."""


@dataclass(frozen=True)
class Evidence:
    """The parsed files of one key folder; ``digests`` maps each name to the SHA-256 of its bytes (64 hex digits)."""

    key_dir: Path
    digests: dict[str, str] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)

    def read(self, name: str) -> Any:
        """Read, digest and keep one file. The bytes that are digested are the bytes that are parsed."""
        path = locate(self.key_dir, name)
        try:
            content = path.read_bytes()
        except OSError as error:
            raise Inconsistent(f"The evidence file {path} cannot be read: {error.strerror}.") from error
        try:
            value = orjson.loads(content)
        except orjson.JSONDecodeError as error:
            raise Inconsistent(f"The evidence file {path} is not JSON: {error}.") from error
        self.digests[name] = hashlib.sha256(content).hexdigest()
        self.values[name] = value
        return value

    @property
    def model(self) -> dict[str, Any]:
        return self._object(MODEL)

    @property
    def environment(self) -> dict[str, Any]:
        return self._object(ENVIRONMENT)

    @property
    def protocol(self) -> dict[str, Any]:
        return self._object("protocol.json")

    @property
    def frozen(self) -> dict[str, Any]:
        return self._object("frozen.json")

    @property
    def profile(self) -> dict[str, Any]:
        return self._object("profile.json")

    @property
    def ranking(self) -> dict[str, Any]:
        return self._object("ranking.json")

    @property
    def confirmation(self) -> dict[str, Any]:
        return self._object("confirmation.json")

    @property
    def candidates(self) -> list[str]:
        """The candidates this run was about. Folders that an earlier configuration left behind are no part of it."""
        return sorted(self.ranking["candidates"])

    def plan(self, candidate: str) -> dict[str, Any]:
        return self._object(f"candidates/{candidate}/plan.json")

    def validation(self, candidate: str) -> dict[str, Any]:
        return self._object(f"candidates/{candidate}/validation.json")

    def runs(self, attention: str) -> dict[str, dict[str, Any]]:
        """The baseline runs under one attention backend, by file name, in the order of their numbers."""
        folder = run_folder(attention)
        return {name: self._object(name) for name in self.values if name.rpartition("/")[0] == folder}

    def _object(self, name: str) -> dict[str, Any]:
        value = self.values[name]
        if not isinstance(value, dict):
            raise Inconsistent(f"The evidence file {locate(self.key_dir, name)} does not hold a JSON object.")
        return value


def locate(key_dir: Path, name: str) -> Path:
    """The path of an evidence file. ``..`` is resolved in the text, so a symbolic link cannot send it elsewhere."""
    return Path(os.path.normpath(os.path.abspath(key_dir / name)))


def run_folder(attention: str) -> str:
    """The folder of the baseline runs under one attention backend."""
    return "baseline" if attention == DEFAULT_ATTENTION else f"baseline/{attention}"


def load(key_dir: Path) -> Evidence:
    """Read every evidence file of ``key_dir`` and check keys, baseline and freeze against each other."""
    evidence = Evidence(key_dir)
    for name in (MODEL, ENVIRONMENT, "protocol.json", "frozen.json", "profile.json", "ranking.json", "confirmation.json"):
        evidence.read(name)
    attentions = [attempt["attention"] for attempt in evidence.frozen["attempts"]]
    for name in (*attentions, *evidence.candidates):
        # The names become parts of paths, and evidence may come from anybody.
        if not _NAME.fullmatch(name):
            raise Inconsistent(f"{name!r} is no name of a candidate or an attention backend.")
    for attention in attentions:
        for number in range(1, evidence.protocol["baselines"] + 1):
            evidence.read(f"{run_folder(attention)}/run{number}.json")
    for candidate in evidence.candidates:
        evidence.read(f"candidates/{candidate}/plan.json")
        evidence.read(f"candidates/{candidate}/validation.json")
        for value in (evidence.plan(candidate), evidence.validation(candidate)):
            if value["candidate"] != candidate:
                raise Inconsistent(f"A file in candidates/{candidate} is about candidate {value['candidate']!r}.")
    _check_keys(evidence)
    _check_baseline(evidence)
    _check_handoffs(evidence)
    return evidence


def _check_keys(evidence: Evidence) -> None:
    """Each folder's name is the key of what lies in it, and each key is the digest of what it stands for."""
    path = Path(os.path.abspath(evidence.key_dir))
    environment, model = evidence.environment, evidence.model
    key, facts = environment["environment"]["key"], environment["environment"]["facts"]
    if short(facts) != key:
        raise Inconsistent(f"The environment key {key} is not the digest of the facts next to it ({short(facts)}).")
    expected = {
        "protocol": (path.name, short(evidence.protocol)),
        "environment": (path.parent.name, key),
        "device": (path.parents[1].name, environment["device"]["id"]),
        "model": (path.parents[2].name, f"{model['model']}@{model['commit']}"),
    }
    for what, (folder, wanted) in expected.items():
        if folder != wanted:
            raise Inconsistent(f"The {what} folder is named {folder}, but its content has the key {wanted}.")


def _check_baseline(evidence: Evidence) -> None:
    """The freeze says what the baseline runs show: which backend agreed with itself first, and on which traces."""
    frozen, first = evidence.frozen, None
    for attempt in frozen["attempts"]:
        agree = _runs_agree(evidence, attempt["attention"])
        if agree != attempt["agree"]:
            found = "agree" if agree else "do not agree"
            raise Inconsistent(f"The runs in {run_folder(attempt['attention'])} {found}; frozen.json says otherwise.")
        if agree and first is None:
            first = attempt["attention"]
    if (frozen["status"] == "frozen") != (first is not None):
        raise Inconsistent(f"frozen.json says {frozen['status']}, which is not what the baseline runs show.")
    if first is None:
        return
    if frozen["attention"] != first or (frozen["pin"] is None) != (first == DEFAULT_ATTENTION):
        raise Inconsistent(f"frozen.json does not name {first}, the first attention backend that reproduced itself.")
    traces = {run["traces_digest"] for run in evidence.runs(first).values()}
    if {frozen["traces_digest"], digest(frozen["sets"])} != traces:
        raise Inconsistent("frozen.json holds other traces than the baseline runs that it was frozen from.")
    if frozen["weights_digest"] != evidence.model["weights_digest"]:
        raise Inconsistent("frozen.json was recorded with other weights than model.json describes.")
    _check_asked(evidence)


def _runs_agree(evidence: Evidence, attention: str) -> bool:
    """Whether all runs under one backend recorded the same traces, each in a process of its own."""
    runs, digests, processes = evidence.runs(attention), set(), set()
    for name, run in runs.items():
        if run["attention"] != attention or run["weights_digest"] != evidence.model["weights_digest"]:
            raise Inconsistent(f"{name} was recorded under another attention backend or with other weights.")
        if run["environment"] != evidence.environment:
            raise Inconsistent(f"{name} was recorded in another environment than environment.json describes.")
        if "failed" in run:
            return False
        if run["traces_digest"] != digest(run["sets"]):
            raise Inconsistent(f"The traces in {name} do not have the digest recorded next to them.")
        digests.add(run["traces_digest"])
        processes.add(tuple(run["process"][part] for part in ("host", "pid", "started")))
    if len(processes) != len(runs):
        raise Inconsistent(f"Two runs in {run_folder(attention)} came from one process; each needs a fresh one.")
    return len(runs) == evidence.protocol["baselines"] and len(digests) == 1


def _check_handoffs(evidence: Evidence) -> None:
    """The small files that stages passed on say what the files they were taken from say."""
    plans = {candidate: evidence.plan(candidate) for candidate in evidence.ranking["order"]}
    handoffs = {
        "reference.json": reference_of(evidence.frozen),
        "skips.json": skips_of(evidence.profile),
        "order.json": order_of(evidence.ranking, plans),
    }
    for name, expected in handoffs.items():
        if evidence.read(name) != expected:
            raise Inconsistent(f"{name} does not say what the file that it was taken from says.")


def _check_asked(evidence: Evidence) -> None:
    """The frozen traces answer what the protocol asks: its sets, each prompt once, with the number of tokens asked for."""
    asked, sets = evidence.protocol["sets"], evidence.frozen["sets"]
    if set(asked) != set(sets):
        raise Inconsistent(f"The protocol asks for the sets {sorted(asked)}, the frozen baseline has {sorted(sets)}.")
    for name, traces in sets.items():
        if len({trace["prompt"] for trace in traces}) != len(asked[name]["prompts"]):
            raise Inconsistent(f"The frozen set {name} does not have one trace for each prompt of the protocol.")
        for trace in traces:
            if not len(trace["tokens"]) == len(trace["logits"]) == len(trace["margins"]) == asked[name]["new_tokens"]:
                raise Inconsistent(f"The frozen trace {trace['prompt']} does not have the length that was asked for.")
