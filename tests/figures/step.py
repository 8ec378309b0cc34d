"""Figures of ``step`` on one GPU: answers of 400 and 4,000 tokens, every class of lengths, sampling, batches, speed.

    python tests/figures/step.py 'random:minicpm5-1b?seed=0' --out FILE

Each part runs in a process of its own. Parts that only compare run side by side, timed ones alone. Nothing is timed whose
output was not compared; attention is pinned to flash.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from figure_parts import Figures, compared, cost, opened, say

from exactgraph.candidates.base import Context
from exactgraph.canonical import read_json
from exactgraph.capture import capturer_for
from exactgraph.protocol import prompts
from exactgraph.protocol.bandwidth import copy_bandwidth, step_bytes
from exactgraph.protocol.questions import Question, questions
from exactgraph.protocol.timing import Repetitions, ask, summarise
from exactgraph.protocol.trace import record_sets
from exactgraph.runtime.attention import pinned
from exactgraph.runtime.load import default_device, load_model, load_tokenizer
from exactgraph.runtime.session import Session

ATTENTION = "flash"
TOKENS, LONG, CLASSES = 400, 4000, (1, 100, 200, 400, 900, 1800, 3900, 8000)
SAMPLED = {
    "temperature": {"temperature": 0.8},
    "top-k": {"top_k": 40},
    "top-p": {"top_p": 0.9, "temperature": 1.1},
}
BATCHES = (1, 4)


class Part:
    """A loaded model, its prompts, and where answers of other parts lie."""

    def __init__(self, folder: Path, shared: Path) -> None:
        self.device = default_device()
        manifest = read_json(folder.parent / "model.json")
        tokenizer = load_tokenizer(folder) if manifest["prompts"] == "text" else None
        self.model = load_model(folder, "bf16", self.device)
        self.model.generation_config.eos_token_id = None
        asked = {"sets": {"heldout": {"new_tokens": TOKENS, "prompts": prompts.load("heldout")}}}
        self.asked = {"greedy": questions(asked, folder, tokenizer, self.model)["heldout"]}
        self.long = {"long": [replace(self.asked["greedy"][0], id="long/0", new_tokens=LONG)]}
        self.shared = shared
        self.context = Context(capturer_for(self.device), 64, 128, TOKENS + 128, BATCHES)

    @contextmanager
    def session(self) -> Iterator[Session]:
        planning = replace(self.context, capturer=capturer_for(self.device))
        with opened(self.model, "step", planning, self.context, ATTENTION) as (session, self.plan):
            yield session


def eager_greedy(part: Part) -> dict[str, Any]:
    with pinned(ATTENTION):
        return {"sets": record_sets(part.model.generate, part.asked, part.device, say)}


def eager_long(part: Part) -> dict[str, Any]:
    with pinned(ATTENTION):
        return {"sets": record_sets(part.model.generate, part.long, part.device, say)}


def step_greedy(part: Part) -> dict[str, Any]:
    return _compared(part, part.asked, "eager_greedy")


def step_long(part: Part) -> dict[str, Any]:
    return _compared(part, part.long, "eager_long")


def _compared(part: Part, asked: dict[str, list[Question]], reference: str) -> dict[str, Any]:
    with part.session() as session:
        found = compared(session, asked, read_json(part.shared / f"{reference}.json")["sets"], part.device)
        return {**found, **cost(part.context)}


def sampled(part: Part) -> dict[str, Any]:
    """Tokens and the state of the generator after sampling, eager's and ours."""
    found = {}
    with part.session() as session:
        for name, arguments in SAMPLED.items():
            sides = []
            for generate in (session.eager, session.generate):
                torch.manual_seed(11)
                asked = part.asked["greedy"][1].inputs(part.device)
                output = generate(**asked, max_new_tokens=TOKENS, do_sample=True, **arguments)
                sides.append((output.tolist(), torch.cuda.get_rng_state().tolist()))
            found[name] = {"tokens_equal": sides[0][0] == sides[1][0], "generator_equal": sides[0][1] == sides[1][1]}
        found |= {"captured_steps": session.steps.captured, "eager_steps": session.steps.eager}
    return found


def classes(part: Part) -> dict[str, Any]:
    """Prompts in every class up to 8,192 tokens: graphs, what each took, and whether answers are eager's."""
    found = []
    generator = torch.Generator().manual_seed(5)
    with part.session() as session:
        for tokens in CLASSES:
            ids = torch.randint(2, 1000, (1, tokens), generator=generator).to(part.device)
            # Without a mask, generate takes a prompt that holds the padding token for a padded one, which runs eager.
            wanted = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 12, "do_sample": False}
            wanted |= {"return_dict_in_generate": True, "output_logits": True}
            expected = session.eager(ids, **wanted)
            before = cost(part.context) | {"captured_steps": session.steps.captured}
            got = session.generate(ids, **wanted)
            after = cost(part.context) | {"captured_steps": session.steps.captured}
            found.append(
                {
                    "prompt_tokens": tokens,
                    "bit_identical": all(torch.equal(a, b) for a, b in zip(got.logits, expected.logits, strict=True)),
                    **{name: after[name] - before[name] for name in after},
                }
            )
        eager_steps = session.steps.eager
    lanes = [{key: lane[key] for key in ("batch", "classes", "why", "kernels")} for lane in part.plan["lanes"]]
    return {"prompts": found, "eager_steps": eager_steps, "lanes": lanes, **cost(part.context)}


def batched(part: Part) -> dict[str, Any]:
    batch = BATCHES[-1]
    asked = part.asked["greedy"][:batch]
    shortest = min(len(question.ids) for question in asked)
    ids = torch.cat([_ids(part, question)[:, :shortest] for question in asked])
    with part.session() as session:
        wanted = {"attention_mask": torch.ones_like(ids), "max_new_tokens": TOKENS, "do_sample": False}
        wanted |= {"return_dict_in_generate": True, "output_logits": True}
        expected, got = session.eager(ids, **wanted), session.generate(ids, **wanted)
        equal = sum(torch.equal(a, b) for a, b in zip(got.logits, expected.logits, strict=True))
        return {
            "batch": batch,
            "logits_equal": equal,
            "logits_of": TOKENS,
            "captured_steps": session.steps.captured,
            "eager_steps": session.steps.eager,
            **cost(part.context),
        }


def timed(part: Part) -> dict[str, Any]:
    """Whole calls in pairs, each compared with eager's recorded tokens; answers of 400 tokens."""
    expected = read_json(part.shared / "eager_greedy.json")["sets"]["greedy"]
    with part.session() as session:
        repetitions = Repetitions(expected, part.device)
        repetitions.untimed(session.generate, part.asked["greedy"], 1)
        repetitions.paired(session.eager, session.generate, part.asked["greedy"], 1)
        if repetitions.difference is not None:
            return {"difference": repetitions.difference}
        summary = summarise(repetitions.pairs)
        short = [replace(part.asked["greedy"][0], new_tokens=count) for count in (1, 64)]
        first, call = (statistics.median(ask(session.generate, q, part.device)[1] for _ in range(9)) for q in short)
    floor, read = copy_bandwidth(part.device), step_bytes(part.model)
    return {
        **{key: summary[key] for key in ("ratio", "interval", "eager_tok_s", "candidate_tok_s")},
        "share_of_floor": read * summary["candidate_tok_s"] / floor,
        "first_token_ms": 1e3 * first,
        "call_64_ms": 1e3 * call,
    }


def compiled(part: Part) -> dict[str, Any]:
    """``static-step-compile`` beside ``step``, on answers of 64 tokens: how many are eager's, and how fast it is."""
    expected = read_json(part.shared / "eager_greedy.json")["sets"]["greedy"]
    asked = [replace(question, new_tokens=64) for question in part.asked["greedy"]]
    context = Context(capturer_for(part.device), 64, 64, 64 + 128)
    with opened(part.model, "static-step-compile", context, context, ATTENTION) as (session, _):
        answers = [ask(session.generate, question, part.device)[0] for question in asked]
        seconds = [ask(session.generate, question, part.device)[1] for question in asked]
    matches = sum(answer == want["tokens"][:64] for answer, want in zip(answers, expected, strict=True))
    return {
        "matches": matches,
        "of": len(asked),
        "tok_s_whole_calls": 64 * len(asked) / sum(seconds) if matches == len(asked) else None,
        "graphs": context.capturer.graphs,
        "capture_s": context.capturer.seconds,
    }


PARTS: dict[str, Callable[[Part], dict[str, Any]]] = {
    part.__name__: part
    for part in (eager_greedy, eager_long, step_greedy, step_long, sampled, classes, batched, timed, compiled)
}
#: What runs side by side, one group after the other; three fresh processes compare the same answers.
ORDER = (
    ("eager_greedy", "eager_long", "sampled", "classes", "batched"),
    ("step_greedy", "step_greedy.2", "step_greedy.3", "step_long", "compiled"),
    ("timed",),
)


def _ids(part: Part, question: Question) -> torch.Tensor:
    return torch.tensor([question.ids], device=part.device)


if __name__ == "__main__":
    Figures(__file__, "step", "bf16", Part, PARTS, ORDER).main()
