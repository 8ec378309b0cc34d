"""``validate``: a candidate against the frozen baseline on the held-out prompts, in a fresh process.

First one recorded pass, with every step's logits; a candidate that is exact there is then run the protocol's number of
repetitions, timed against eager except in a rehearsal. Every run's token IDs are compared. Controls that confirmation is to
catch end with the recorded pass.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from exactgraph.candidates.base import Candidate, Context
from exactgraph.candidates.registry import candidate
from exactgraph.canonical import digest, write_json
from exactgraph.progress import Progress
from exactgraph.protocol.compare import Comparison, compare_sets
from exactgraph.protocol.verdict import judge
from exactgraph.refusal import Refused
from exactgraph.stages.bench import Bench, open_bench
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
        with open_bench(place) as bench:
            result.update(_validate(bench, candidate(name), plan["decisions"]))
            result["process"] = bench.process()
    write_json(place.validation_path(name), result)


def _validate(bench: Bench, chosen: Candidate, decisions: dict[str, Any]) -> Result:
    from exactgraph.protocol.timing import EagerMoved, Repetitions, summarise
    from exactgraph.protocol.trace import record_sets
    from exactgraph.runtime.session import Session
    from exactgraph.stages.context import context_of

    frozen = bench.place.frozen()
    context = context_of(bench)
    asked = bench.questions["heldout"]
    protocol = bench.protocol
    timed = chosen.timed and not protocol["rehearsal"]
    try:
        with Session(bench.model, chosen, decisions, context, frozen["attention"]) as session:
            with Progress(f"validate {chosen.id}", len(asked)) as progress:
                sets = record_sets(session.generate, {"heldout": asked}, bench.device, progress.step)
            comparison = compare_sets(frozen["sets"], sets)
            result: Result = {"sets": sets, "traces_digest": digest(sets), "comparison": comparison}
            result.update(judge(comparison, chosen.claims))
            result["measured"] = _cost(context)
            refusal = _served_by_eager(session)
            if refusal is not None:
                return {**result, "status": "refused", "why": refusal}
            if result["status"] != "exact":
                return result
            if not chosen.timed:
                return result
            repetitions = Repetitions(frozen["sets"]["heldout"], bench.device)
            if timed:
                with bench.hold.alone():
                    repetitions.paired(session.eager, session.generate, asked, protocol["warmups"], protocol["repetitions"])
                    result["measured"] = _floor(bench)
            else:
                repetitions.untimed(session.generate, asked, protocol["repetitions"])
            result["comparison"] = _with_repetitions(comparison, repetitions)
            result.update(judge(result["comparison"], chosen.claims))
            result["measured"] |= _cost(context) | _steps(session)
            if timed:
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


def _with_repetitions(recorded: Comparison, repetitions: Any) -> Comparison:
    """The comparison whose token counts are those of the repetitions; logits were recorded once, in the first pass."""
    return {
        **recorded,
        "matches": repetitions.matches,
        "of": repetitions.of,
        "first_token_difference": recorded["first_token_difference"] or repetitions.difference,
    }


def _cost(context: Context) -> Result:
    capturer = context.capturer
    return {
        "emulated": capturer.emulated,
        "graphs": capturer.graphs,
        "capture_seconds": round(capturer.seconds, 3),
        "graph_bytes": capturer.bytes,
    }


def _served_by_eager(session: Session) -> str | None:
    """Why the calls so far are no merit of the candidate's, though exact, or None."""
    if session.fallbacks:
        return next(iter(session.fallbacks)).sentence
    if session.steps.eager and not session.steps.captured:
        return "Every decode step ran eager: no length of these sequences was captured."
    return None


def _steps(session: Session) -> Result:
    """How the decode steps of our loop ran, over all calls."""
    steps = session.steps
    return {"captured_steps": steps.captured, "eager_steps": steps.eager} if steps.captured else {}


def _floor(bench: Bench) -> Result:
    from exactgraph.protocol.bandwidth import copy_bandwidth, step_bytes

    return {"copy_bandwidth_bytes_s": copy_bandwidth(bench.device), "step_weight_bytes": step_bytes(bench.model)}


def _share(floor: Result, tokens_a_second: float) -> Result:
    """Weight bytes read a second, and as a share of what a copy reaches on the same device in the same run."""
    read = floor["step_weight_bytes"] * tokens_a_second
    return {"weight_bytes_s": read, "share_of_floor": read / floor["copy_bandwidth_bytes_s"]}
