"""One candidate of a bench: compared with eager, then timed against it, as a row of plain JSON.

A figure without a comparison does not exist: what is refused, fails or differs has none.
"""

from __future__ import annotations

import statistics
from typing import Any

from exactgraph.bench.eager import Floor, Reference
from exactgraph.bench.memory import MIB, Peak, release
from exactgraph.bench.stand import Stand
from exactgraph.candidates.base import Candidate, Context, Decisions
from exactgraph.candidates.registry import candidate
from exactgraph.progress import Progress
from exactgraph.protocol.compare import Comparison, compare_sets, first_difference
from exactgraph.protocol.timing import EagerMoved, Repetitions, summarise
from exactgraph.protocol.trace import record_sets
from exactgraph.protocol.verdict import EXACT, judge
from exactgraph.refusal import Refused
from exactgraph.runtime.attention import pinned
from exactgraph.runtime.session import Session

Row = dict[str, Any]

#: Status of a row where eager did not reproduce itself, before or during the timing.
NOT_COMPARED, MOVED = "not-compared", "baseline-moved"

_COMPARED = ("status", "why", "grade", "matches", "of", "logits_equal", "logits_of", "difference")
_TIMED = ("eager_tok_s", "tok_s", "ratio", "interval", "faster", "gb_s", "share_of_floor", "first_token_ms", "pairs")
_COST = ("capture_s", "graphs", "graph_mib", "peak_mib", "captured_steps", "eager_steps")


def blank(name: str) -> Row:
    """Every field of a row, without a value."""
    chosen = candidate(name)
    row: Row = {"id": name, "claims": chosen.claims, "control": chosen.control}
    return row | dict.fromkeys((*_COMPARED, *_TIMED, *_COST))


def measure(stand: Stand, reference: Reference, floor: Floor | None, name: str) -> Row:
    """Plan, install, compare and, given a ``floor``, time the candidate ``name``. Whatever it dies of is a result."""
    row = blank(name)
    if reference.difference is not None:
        return row | {"status": NOT_COMPARED, "why": "There is nothing to compare with: eager does not reproduce itself here."}
    chosen = candidate(name)
    try:
        with pinned(stand.settings.attention):
            decisions = chosen.plan(stand.model, stand.context()) if chosen.plans else {}
        release(stand.device)  # the graphs of the plan
        row |= _compared(stand, reference, floor, chosen, decisions)
    except Refused as refused:
        row |= {"status": "refused", "why": refused.refusal.sentence}
    except EagerMoved as moved:
        row |= {"status": MOVED, "why": f"While timed, {moved}.", "difference": moved.difference}
    except Exception as error:
        row |= {"status": "failed", "why": f"{type(error).__name__}: {error}"}
    release(stand.device)
    return row


def _compared(stand: Stand, reference: Reference, floor: Floor | None, chosen: Candidate, decisions: Decisions) -> Row:
    settings, asked = stand.settings, stand.questions
    expected = reference.sets[settings.prompt_set]
    context = stand.context()
    peak = Peak(stand.device)
    with Session(stand.model, chosen, decisions, context, settings.attention) as session:
        plain = Repetitions(expected, stand.device)
        if stand.timed:  # before anything keeps logits: they are no memory of the candidate's
            plain.untimed(session.generate, asked, 1)
        peak_mib = peak.mib()
        with Progress(chosen.id, len(asked)) as progress:
            sets = record_sets(session.generate, stand.asked, stand.device, progress.step)
        recorded = compare_sets(reference.sets, sets)
        if plain.difference is not None:
            recorded = plain.counted(recorded)
        row = _verdict(recorded, chosen) | _cost(context, stand.timed) | {"peak_mib": peak_mib}
        row |= _refused(row, session)
        if row["status"] != EXACT:
            return row
        repetitions = Repetitions(expected, stand.device)
        if floor is not None and chosen.timed:
            repetitions.warm_up(session.eager, session.generate, asked, settings.warmups)
            with stand.hold.alone():
                repetitions.paired(session.eager, session.generate, asked, settings.repetitions)
        else:
            repetitions.untimed(session.generate, asked, settings.repetitions)
        row |= _verdict(repetitions.counted(recorded), chosen) | _cost(context, stand.timed) | _steps(session)
        row |= _refused(row, session)
        if floor is not None and repetitions.pairs and row["status"] == EXACT:
            row |= _figures(repetitions.pairs, floor)
        return row


def _verdict(comparison: Comparison, chosen: Candidate) -> Row:
    counts = {key: comparison[key] for key in ("matches", "of", "logits_equal", "logits_of")}
    return {**judge(comparison, chosen.claims), **counts, "difference": first_difference(comparison)}


def _refused(row: Row, session: Session) -> Row:
    """Where eager served the calls: why. A difference stays a difference."""
    why = session.served_by_eager() if row["status"] == EXACT else None
    return {} if why is None else {"status": "refused", "why": why}


def _cost(context: Context, timed: bool) -> Row:
    """What capture has cost. Emulated capture takes no time or memory worth naming."""
    capturer = context.capturer
    if not timed:
        return {"graphs": capturer.graphs}
    return {"graphs": capturer.graphs, "capture_s": round(capturer.seconds, 3), "graph_mib": capturer.bytes / MIB}


def _steps(session: Session) -> Row:
    """How the decode steps of our loop ran, over all calls."""
    steps = session.steps
    return {"captured_steps": steps.captured, "eager_steps": steps.eager} if steps.captured else {}


def _figures(pairs: list[dict[str, Any]], floor: Floor) -> Row:
    timing = summarise(pairs)
    kept = {key: timing[key] for key in ("eager_tok_s", "ratio", "interval", "faster", "pairs")}
    rate = timing["candidate_tok_s"]
    first = {who: first_token_ms(pairs, who) for who in ("eager", "candidate")}
    return {**kept, "tok_s": rate, **floor.figures(rate), "first_token_ms": first}


def first_token_ms(pairs: list[dict[str, Any]], who: str) -> float:
    """Median milliseconds of the calls that generate one token, prompt included, over all prompts."""
    seconds: float = statistics.median(pair[f"{who}_first_s"] for pair in pairs)
    return 1e3 * seconds
