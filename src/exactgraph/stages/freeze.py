"""``freeze``: the baseline, once independent processes agree on it.

The three runs under the default attention backend come first. Where they differ, each backend of ``attention_preference`` gets
three fresh processes in turn, and the first that reproduces itself becomes the pin of everything that follows. The processes
of one backend may run at the same time: sharing a GPU changes no bits.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from exactgraph.canonical import read_json, write_json
from exactgraph.protocol.compare import Difference, compare_sets, first_difference, sentence
from exactgraph.stages.fresh import run_fresh
from exactgraph.stages.place import Place
from exactgraph.workflow.handoff import reference_of

Run = dict[str, Any]


def run(folder: Path, code: str, jobs: int) -> None:
    """Write ``frozen.json``, and ``reference.json`` for the stages that follow; at most ``jobs`` processes run at a time.

    Nothing in them depends on when or how fast the runs were, so an equal baseline has equal bytes.
    """
    place = Place(folder)
    protocol = place.protocol()
    runs = range(1, protocol["baselines"] + 1)
    attempts: list[dict[str, Any]] = []
    agreed: Run | None = None
    for attention in ["default", *protocol["attention_preference"]]:
        if attention != "default":
            _record(place, attention, runs, jobs)
        records: list[Run] = [read_json(place.baseline_path(attention, number)) for number in runs]
        attempt = _compare(attention, records)
        attempts.append(attempt)
        if attempt["agree"]:
            agreed = records[0]
            break
    frozen = _frozen(code, attempts, agreed)
    write_json(folder / "reference.json", reference_of(frozen))
    write_json(folder / "frozen.json", frozen)


def _record(place: Place, attention: str, runs: Iterable[int], jobs: int) -> None:
    """Make the baselines under a pinned backend. Where one fails, those that have begun are waited for."""

    def record(number: int) -> None:
        path = place.baseline_path(attention, number)
        run_fresh("baseline", str(place.folder), "--run", str(number), "--attention", attention, "--out", str(path))

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(record, runs))


def _compare(attention: str, records: list[Run]) -> dict[str, Any]:
    attempt: dict[str, Any] = {"attention": attention, "agree": False, "difference": None, "failed": None}
    for record in records:
        if "failed" in record:
            return {**attempt, "failed": record["failed"]}
    first = records[0]
    for other in records[1:]:
        difference = first_difference(compare_sets(first["sets"], other["sets"]))
        if difference is not None:
            return {**attempt, "difference": difference}
    return {**attempt, "agree": True}


def _frozen(code: str, attempts: list[dict[str, Any]], agreed: Run | None) -> dict[str, Any]:
    frozen: dict[str, Any] = {"stage": "freeze", "code": code, "attempts": attempts, "pin": None}
    if agreed is None:
        return {
            **frozen,
            "status": "baseline-unstable",
            "attention": "default",
            "weights_digest": None,
            "sets": None,
            "traces_digest": None,
            "texts": {},
        }
    if agreed["attention"] != "default":
        frozen["pin"] = {"backend": agreed["attention"], "sentence": _pin_sentence(attempts)}
    return {
        **frozen,
        "status": "frozen",
        "attention": agreed["attention"],
        "weights_digest": agreed["weights_digest"],
        "sets": agreed["sets"],
        "traces_digest": agreed["traces_digest"],
        "texts": agreed["texts"],
    }


def _pin_sentence(attempts: list[dict[str, Any]]) -> str:
    chosen = attempts[-1]["attention"]
    reasons = [f"{attempt['attention']}: {_why_not(attempt)}" for attempt in attempts[:-1]]
    why = "; ".join(reasons)
    return f"Attention is pinned to {chosen}, the first backend that reproduces itself in fresh processes ({why})."


def _why_not(attempt: dict[str, Any]) -> str:
    difference: Difference | None = attempt["difference"]
    return attempt["failed"]["sentence"] if difference is None else sentence(difference)
