"""Figures of ``encdec-step`` on one GPU: greedy, sampled and guided answers, windows, the encoder ahead of the loop, speed.

    python tests/figures/encdec.py 'random:whisper-small-2560?seed=0' --out FILE

Parts that only compare run side by side, with eager and candidate in one process each; ``eager`` is the reference once more in
a process of its own. Timed parts run alone. Nothing is timed whose output was not compared; attention is pinned to flash for
what flash can do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from encdec_guided import guided
from encdec_part import Part, precision_of
from encdec_windows import encoder, windows
from figure_parts import Figures, Result, compared, cost, say

from exactgraph.canonical import digest, read_json
from exactgraph.protocol.compare import first_tokens
from exactgraph.protocol.questions import Question
from exactgraph.protocol.timing import Repetitions, summarise
from exactgraph.protocol.trace import Trace, record_sets
from exactgraph.refusal import Refused
from exactgraph.runtime.attention import preferred
from exactgraph.runtime.load import default_device

SAMPLED: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 0.8},
    "top-k": {"top_k": 40},
    "top-p": {"top_p": 0.9, "temperature": 1.1},
}
COMPILED = 64  # tokens
TIMED = 6  # windows in pairs of calls


def eager(part: Part) -> Result:
    with preferred(part.attention):
        return {"sets": record_sets(part.model.generate, part.asked, part.device, say)}


def greedy(part: Part) -> Result:
    return _both(part, part.asked)


def long(part: Part) -> Result:
    return _both(part, {"long": [replace(part.windows[0], id="long", new_tokens=part.sizes.long)]})


def _both(part: Part, asked: dict[str, list[Question]], name: str = "encdec-step") -> Result:
    """Eager's answers and the candidate's in one process."""
    with part.session(name) as session:
        expected = record_sets(session.eager, asked, part.device, say)
        found = compared(session, asked, expected, part.device)
        stepper: Any = session._installation.stepper
        buckets = sorted({capacity for slots in stepper._slots.values() for capacity in slots._buckets})
    return {"traces_digest": digest({"sets": expected}), "buckets": buckets, **found, **cost(part.context)}


def sampled(part: Part) -> Result:
    """Tokens and the state of the generator after sampling, eager's and ours."""
    found: Result = {}
    arguments = {**part.windows[1].inputs(part.device), "max_new_tokens": part.sizes.tokens, "do_sample": True}
    with part.session() as session:
        for name, settings in SAMPLED.items():
            sides = []
            for generate in (session.eager, session.generate):
                torch.manual_seed(11)
                sides.append((generate(**arguments, **settings).tolist(), part.generator()))
            equal = {"tokens_equal": sides[0][0] == sides[1][0], "generator_equal": torch.equal(sides[0][1], sides[1][1])}
            found[name] = {"distinct_tokens": len(set(sides[0][0][0])), **equal}
        return {**found, "captured_steps": session.steps.captured, "eager_steps": session.steps.eager}


def compiled(part: Part) -> Result:
    """``encdec-compile``: how many answers of up to 64 tokens are eager's."""
    try:
        return _both(part, {"compiled": _cut(part.asked["greedy"])}, "encdec-compile")
    except Refused as refused:
        return {"refused": refused.refusal.to_json()}


def timed(part: Part) -> Result:
    """Whole calls in pairs, each compared with eager's tokens of another process; a compiled step too, if all were equal."""
    eager, greedy, compiled = (read_json(part.shared / f"{name}.json") for name in ("eager", "greedy", "compiled"))
    expected, asked = eager["sets"]["greedy"], part.asked["greedy"][:TIMED]
    found = _paired(part, "encdec-step", asked, expected)
    found["eager_reproduces"] = digest(eager) == greedy.get("traces_digest")
    if compiled.get("matches", 0) == len(expected):
        short = [first_tokens(trace, COMPILED) for trace in expected]
        found["compiled"] = _paired(part, "encdec-compile", _cut(asked), short)
    return found


def _cut(asked: list[Question]) -> list[Question]:
    return [replace(question, new_tokens=min(COMPILED, question.new_tokens)) for question in asked]


def _paired(part: Part, name: str, asked: list[Question], expected: list[Trace]) -> Result:
    with part.session(name) as session:
        repetitions = Repetitions(expected, part.device)
        repetitions.untimed(session.generate, asked, 1)
        repetitions.warm_up(session.eager, session.generate, asked[:1], 1)
        repetitions.paired(session.eager, session.generate, asked, 2)
    if repetitions.difference is not None:
        return {"difference": repetitions.difference}
    summary = summarise(repetitions.pairs)
    figures = {key: summary[key] for key in ("ratio", "interval", "eager_tok_s", "candidate_tok_s")}
    return {**figures, "decode_ratio": figures["candidate_tok_s"] / figures["eager_tok_s"], "pairs": len(repetitions.pairs)}


PARTS: dict[str, Callable[[Part], Result]] = {
    part.__name__: part for part in (eager, greedy, long, sampled, guided, compiled, timed, windows, encoder)
}
#: What runs side by side, one group after the other.
ORDER = (("eager", "greedy", "long", "sampled", "guided", "compiled"), ("timed",), ("windows",), ("encoder",))


if __name__ == "__main__":
    Figures(__file__, "encdec-step", precision_of(default_device()), Part, PARTS, ORDER).main()
