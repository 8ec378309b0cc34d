"""``validate``: a candidate against the frozen baseline on the held-out prompts, in a fresh process.

First one recorded pass, with every step's logits; then the protocol's number of repetitions, and every run's token IDs are
compared. Where the candidate was exact in the first pass, the last ``timed`` are timed against eager; where it was not,
they show how often it differs. Before those, what was exact is asked in each batch that the protocol names, and about windows
of a speech model ahead of decoding, beside eager. A rehearsal times nothing. Controls that are to be rejected, here or at
confirmation, end with the first pass and its batches.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from exactgraph.candidates.base import Candidate, Context
from exactgraph.candidates.registry import candidate
from exactgraph.canonical import digest, write_json
from exactgraph.progress import Progress
from exactgraph.protocol.batch_verdict import judge_all
from exactgraph.protocol.batches import beyond_one
from exactgraph.protocol.compare import compare_sets
from exactgraph.protocol.verdict import EXACT, judge
from exactgraph.protocol.window_ways import asked_of
from exactgraph.refusal import Refused
from exactgraph.stages.loaded import Loaded, open_model
from exactgraph.stages.place import Place

if TYPE_CHECKING:
    from exactgraph.profile.record import Recording
    from exactgraph.protocol.questions import Question
    from exactgraph.protocol.timing import Repetitions
    from exactgraph.runtime.session import Session

Result = dict[str, Any]


def run(folder: Path, code: str, name: str) -> None:
    """Write ``validation.json``."""
    place = Place(folder)
    plan = place.plan(name)
    result: Result = {
        "stage": "validate",
        "code": code,
        "candidate": name,
        "control": plan["control"],
        "status": plan["status"],
        "why": None if plan["refusal"] is None else plan["refusal"]["sentence"],
        "grade": None,
        "comparison": None,
        "timing": None,
        "measured": {},
        "process": None,
        "sets": {},
        "traces_digest": digest({}),
    }
    if plan["status"] == "built":
        with open_model(place) as loaded:
            result.update(_validate(loaded, candidate(name), plan["decisions"]))
            result["process"] = loaded.process()
    write_json(place.validation_path(name), result)


def _validate(loaded: Loaded, chosen: Candidate, decisions: dict[str, Any]) -> Result:
    from exactgraph.environment.load import watched
    from exactgraph.protocol.timing import EagerMoved, Repetitions, summarise
    from exactgraph.protocol.trace import record_sets
    from exactgraph.runtime.session import Session
    from exactgraph.stages.batches import ask_batches
    from exactgraph.stages.context import context_of
    from exactgraph.stages.windows import AskedWindows

    frozen = loaded.place.frozen()
    context = context_of(loaded)
    asked = loaded.questions["heldout"]
    protocol = loaded.protocol
    try:
        with Session(loaded.model, chosen, decisions, context, frozen["attention"]) as session:
            with Progress(f"validate {chosen.id}", len(asked)) as progress:
                sets = record_sets(session.generate, {"heldout": asked}, loaded.device, progress.step)
            comparison = compare_sets(frozen["sets"], sets)
            result: Result = {"sets": sets, "traces_digest": digest(sets), "comparison": comparison}
            result.update(judge(comparison, chosen.claims))
            result["measured"] = _cost(context)
            refusal = session.served_by_eager()
            if refusal is not None:
                return {**result, "status": "refused", "why": refusal}
            batches = beyond_one(protocol)
            if batches and result["status"] == EXACT:
                result["batches"] = ask_batches(session, {"heldout": asked}, batches)
                result.update(judge_all(comparison, result["batches"], chosen.claims))
                result["measured"] = _cost(context)
            windows = None
            if asked_of(protocol) and not chosen.control and result["status"] == EXACT:
                windows = AskedWindows(session, {"heldout": asked}, protocol, frozen["attention"])
                result["windows"] = windows.record
            if chosen.control and (result["status"] != EXACT or not chosen.timed):
                return result
            repetitions = Repetitions(frozen["sets"]["heldout"], loaded.device)
            timed = protocol["timed"] if chosen.timed and result["status"] == EXACT else 0
            # Whatever need not have the GPU alone comes before: other jobs wait for this one meanwhile.
            repetitions.untimed(session.generate, asked, protocol["repetitions"] - timed)
            if timed:
                repetitions.warm_up(session.eager, session.generate, asked, protocol["warmups"])
                with loaded.hold.alone():
                    with watched(loaded.hold.uuid) as load:
                        repetitions.paired(session.eager, session.generate, asked, timed)
                        if windows is not None:
                            windows.time(timed)
                    result["measured"] = _floor(loaded) | {"load": load.to_json()}
                    recording = _record(loaded, session, asked[0], repetitions)
                result["measured"] |= _profile(recording)
            result["comparison"] = repetitions.counted(comparison)
            result.update(judge_all(result["comparison"], result.get("batches", []), chosen.claims))
            result["measured"] |= _cost(context) | _steps(session)
            if repetitions.pairs and result["status"] == EXACT:
                result["timing"] = summarise(repetitions.pairs)
                result["measured"] |= _share(result["measured"], result["timing"]["candidate_tok_s"])
            return result
    except Refused as refused:
        return {"status": "refused", "why": refused.refusal.sentence}
    except EagerMoved as moved:
        return {"status": "baseline-moved", "why": f"{moved}; nothing can be compared with a reference that moves."}
    except Exception as error:
        # Whatever a candidate dies of is a result; the rest of the ladder goes on.
        return {"status": "failed", "why": f"{type(error).__name__}: {error}"}


def _cost(context: Context) -> Result:
    capturer = context.capturer
    return {
        "emulated": capturer.emulated,
        "graphs": capturer.graphs,
        "capture_seconds": round(capturer.seconds, 3),
        "graph_bytes": capturer.bytes,
    }


def _steps(session: Session) -> Result:
    """How the decode steps of our loop ran, over all calls."""
    steps = session.steps
    return {"captured_steps": steps.captured, "eager_steps": steps.eager} if steps.captured else {}


def _floor(loaded: Loaded) -> Result:
    from exactgraph.protocol.bandwidth import copy_bandwidth, step_bytes

    return {"copy_bandwidth_bytes_s": copy_bandwidth(loaded.device), "step_weight_bytes": step_bytes(loaded.model)}


def _record(loaded: Loaded, session: Session, question: Question, repetitions: Repetitions) -> Recording | Exception:
    """A few steps with the candidate, under the profiler. It decides nothing, so it may fail."""
    from exactgraph.profile.step import record_steps

    try:
        recording = record_steps(session.generate, question, loaded.device)
    except (Refused, RuntimeError) as error:
        return error
    repetitions.compare_short(question, recording.tokens)
    return recording


def _profile(recording: Recording | Exception) -> Result:
    """What a step with the candidate is on the GPU."""
    from exactgraph.profile.step import work

    if isinstance(recording, Exception):
        return {"profile": {"failed": str(recording)}}
    try:
        return {"profile": work(recording)}
    except ValueError as error:
        return {"profile": {"failed": str(error)}}


def _share(floor: Result, tokens_a_second: float) -> Result:
    """Weight bytes read a second, and as a share of what a copy reaches on the same device in the same run."""
    read = floor["step_weight_bytes"] * tokens_a_second
    return {"weight_bytes_s": read, "share_of_floor": read / floor["copy_bandwidth_bytes_s"]}
