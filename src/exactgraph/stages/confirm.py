"""``confirm``: the ranked candidates against what validation never saw, each in a fresh process, until one matches.

The controls come first. They are right in validation and wrong here; if confirmation did not catch them, it could not be
trusted with anything else. The controls and the first candidate may run at the same time, because normally all of them are
needed; an attempt that the walk does not come to is thrown away.
"""

from __future__ import annotations

import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from exactgraph.candidates.registry import candidate
from exactgraph.canonical import digest, read_json, write_json
from exactgraph.progress import Progress
from exactgraph.protocol.batch_verdict import first_of_all, judge_all
from exactgraph.protocol.batches import beyond_one
from exactgraph.protocol.compare import compare_sets
from exactgraph.protocol.verdict import EXACT, judge
from exactgraph.protocol.window_ways import asked_of, decide
from exactgraph.refusal import Refused
from exactgraph.stages.fresh import run_fresh
from exactgraph.stages.loaded import open_model
from exactgraph.stages.place import Place

Attempt = dict[str, Any]


def run(folder: Path, code: str, jobs: int) -> None:
    """Write ``confirmation.json``; at most ``jobs`` attempts run at a time."""
    place = Place(folder)
    ranking = place.ranking()
    attempts: list[Attempt] = []
    result: dict[str, Any] = {"stage": "confirm", "code": code, "confirmed": None, "attempts": attempts}
    if ranking["status"] is not None:
        result |= {"status": "skipped", "sentence": ranking["sentence"]}
    else:
        result |= _walk(place, ranking, attempts, jobs)
    write_json(folder / "confirmation.json", result)


def _walk(place: Place, ranking: dict[str, Any], attempts: list[Attempt], jobs: int) -> dict[str, Any]:
    ahead = _ahead(place.folder, ranking, jobs) if jobs > 1 else {}
    for name in ranking["order"]:
        attempt = ahead[name].result() if name in ahead else attempt_fresh(place.folder, name)
        attempts.append(attempt)
        matched = attempt["status"] == "matched"
        if ranking["candidates"][name]["control"]:
            if attempt["status"] != "mismatch":
                sentence = f"The control {name} ended {attempt['status']} at confirmation; it must end in a mismatch."
                return {"status": "controls-failed", "sentence": sentence}
        elif matched:
            return {
                "status": "confirmed",
                "confirmed": name,
                "sentence": f"{name} reproduced the baseline in a fresh process on what validation never saw.",
            }
    return {"status": "confirmation-mismatch", "sentence": "No candidate that passed validation passed confirmation."}


def _ahead(folder: Path, ranking: dict[str, Any], jobs: int) -> dict[str, Future[Attempt]]:
    """The attempts of the controls and of the first candidate, all ended. Errors wait until the walk asks for the result."""
    controls = [name for name in ranking["order"] if ranking["candidates"][name]["control"]]
    with ThreadPoolExecutor(jobs) as pool:
        return {name: pool.submit(attempt_fresh, folder, name) for name in ranking["order"][: len(controls) + 1]}


def attempt_fresh(folder: Path, name: str) -> Attempt:
    """One confirmation of the candidate ``name`` in a fresh process."""
    with tempfile.TemporaryDirectory() as temporary:
        out = Path(temporary) / "attempt.json"
        run_fresh("confirm-one", str(folder), "--candidate", name, "--out", str(out))
        attempt: Attempt = read_json(out)
    return attempt


def traces_fresh(folder: Path, name: str) -> dict[str, list[dict[str, Any]]]:
    """The traces of one confirmation in a fresh process.

    Raises ``Refused`` where the candidate did not get through, or left eager in a batch, or where windows are not what the
    confirmation recorded of them: those have no frozen traces.
    """
    attempt = attempt_fresh(folder, name)
    if attempt["status"] == "failed":
        raise Refused("confirmation-failed", attempt["why"])
    if attempt["status"] == "mismatch" and "batches" in attempt:
        raise Refused("batch-differs", attempt["why"])
    if "windows" in attempt:
        _same_windows(Place(folder), attempt)
    sets: dict[str, list[dict[str, Any]]] = attempt["sets"]
    return sets


def _same_windows(place: Place, attempt: Attempt) -> None:
    """Raise ``Refused`` where windows would now be encoded or decoded otherwise than by the confirmation, or graded lower."""
    name, asked = attempt["candidate"], asked_of(place.protocol())
    validated = read_json(place.validation_path(name))["windows"]
    attempts = read_json(place.folder / "confirmation.json")["attempts"]
    recorded = next(found for found in attempts if found["candidate"] == name)
    assert asked is not None
    then, now = (decide(asked, validated, found["windows"]) for found in (recorded, attempt))
    if then != now:
        raise Refused("windows-differ", f"Windows ahead of decoding were {then} and are {now}.")


def run_one(folder: Path, name: str, out: Path) -> None:
    """Ask every prompt set through the candidate and compare with the baseline; then, where that is exact, the batches that
    the protocol names, and compare with eager; and windows ahead of decoding, of the sets that validation never saw. Writes
    the attempt to ``out``."""
    place = Place(folder)
    chosen = candidate(name)
    attempt: Attempt = {
        "candidate": name,
        "control": chosen.control,
        "status": "failed",
        "grade": None,
        "difference": None,
        "comparison": None,
        "why": None,
        "sets": {},
        "traces_digest": digest({}),
    }
    plan = place.plan(name)
    with open_model(place) as loaded:
        from exactgraph.protocol.trace import record_sets
        from exactgraph.runtime.session import Session
        from exactgraph.stages.batches import ask_batches
        from exactgraph.stages.context import context_of
        from exactgraph.stages.windows import AskedWindows

        frozen = place.frozen()
        total = sum(len(asked) for asked in loaded.questions.values())
        try:
            with (
                Session(loaded.model, chosen, plan["decisions"], context_of(loaded), frozen["attention"]) as session,
                Progress(f"confirm {name}", total) as progress,
            ):
                sets = record_sets(session.generate, loaded.questions, loaded.device, progress.step)
                if not session.served:
                    # Equal answers, but eager's own.
                    raise Refused("served-by-eager", str(session.served_by_eager()))
                comparison = compare_sets(frozen["sets"], sets)
                batches = beyond_one(loaded.protocol)
                exact = judge(comparison, chosen.claims)["status"] == EXACT
                if batches and exact:
                    attempt["batches"] = ask_batches(session, loaded.questions, batches)
                if asked_of(loaded.protocol) and not chosen.control and exact:
                    unseen = {name: asked for name, asked in loaded.questions.items() if name != "heldout"}
                    windows = AskedWindows(session, unseen, loaded.protocol, frozen["attention"])
                    attempt["windows"] = windows.record
        except Exception as error:
            # Whatever a candidate dies of is a result.
            attempt["why"] = f"{type(error).__name__}: {error}"
        else:
            records = attempt.get("batches", [])
            verdict = judge_all(comparison, records, chosen.claims)
            attempt |= {
                "status": "matched" if verdict["status"] == EXACT else "mismatch",
                "grade": verdict["grade"],
                "why": verdict["why"],
                "difference": first_of_all(comparison, records),
                "comparison": comparison,
                "sets": sets,
                "traces_digest": digest(sets),
            }
        attempt["process"] = loaded.process()
    write_json(out, attempt)
