"""``validate``: a candidate against the frozen baseline on the held-out prompts, in a fresh process.

First one recorded pass, with every step's logits; then the protocol's number of repetitions, and every run's token IDs are
compared. A candidate that was exact in the first pass is timed against eager meanwhile, except in a rehearsal; of one that was
not, they show how often it differs. Controls that are to be rejected, here or at confirmation, end with the first pass.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from exactgraph.candidates.base import Candidate, Context
from exactgraph.candidates.registry import candidate
from exactgraph.canonical import digest, write_json
from exactgraph.progress import Progress
from exactgraph.protocol.compare import compare_sets
from exactgraph.protocol.verdict import judge
from exactgraph.refusal import Refused
from exactgraph.stages.loaded import Loaded, open_model
from exactgraph.stages.place import Place

if TYPE_CHECKING:
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
    from exactgraph.protocol.timing import EagerMoved, Repetitions, summarise
    from exactgraph.protocol.trace import record_sets
    from exactgraph.runtime.session import Session
    from exactgraph.stages.context import context_of

    frozen = loaded.place.frozen()
    context = context_of(loaded)
    asked = loaded.questions["heldout"]
    protocol = loaded.protocol
    timed = chosen.timed and not protocol["rehearsal"]
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
            if chosen.control and (result["status"] != "exact" or not chosen.timed):
                return result
            repetitions = Repetitions(frozen["sets"]["heldout"], loaded.device)
            if timed and result["status"] == "exact":
                with loaded.hold.alone():
                    repetitions.paired(session.eager, session.generate, asked, protocol["warmups"], protocol["repetitions"])
                    result["measured"] = _floor(loaded)
            else:
                repetitions.untimed(session.generate, asked, protocol["repetitions"])
            result["comparison"] = repetitions.counted(comparison)
            result.update(judge(result["comparison"], chosen.claims))
            result["measured"] |= _cost(context) | _steps(session)
            if repetitions.pairs and result["status"] == "exact":
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


def _share(floor: Result, tokens_a_second: float) -> Result:
    """Weight bytes read a second, and as a share of what a copy reaches on the same device in the same run."""
    read = floor["step_weight_bytes"] * tokens_a_second
    return {"weight_bytes_s": read, "share_of_floor": read / floor["copy_bandwidth_bytes_s"]}
