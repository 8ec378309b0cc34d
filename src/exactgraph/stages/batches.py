"""Asking a session in batches: eager and the candidate, one after the other, on the same prompts."""

from __future__ import annotations

import hashlib
from typing import Any

import torch

from exactgraph.progress import Progress
from exactgraph.protocol.batch_verdict import Record
from exactgraph.protocol.batches import cut
from exactgraph.protocol.questions import Question, Questions
from exactgraph.protocol.trace import Generate, Trace
from exactgraph.runtime.session import Session

_NO_STEPPER = "The candidate captures no whole steps; what it makes of a batch is compared all the same."


def ask_batches(session: Session, asked: Questions, batches: list[int]) -> list[Record]:
    """One batch of each size for each prompt set of ``asked``, through eager and through the candidate."""
    with Progress("batches", len(batches) * len(asked)) as progress:
        return [_ask(session, asked, batch, progress) for batch in batches]


def _ask(session: Session, asked: Questions, batch: int, progress: Progress) -> Record:
    eager: dict[str, list[Trace]] = {}
    candidate: dict[str, list[Trace]] = {}
    captured, why = 0, None
    for name, questions in asked.items():
        rows = cut(questions, batch)
        eager[name] = _record(session.eager, rows, session.model.device)
        candidate[name] = _record(session.generate, rows, session.model.device)
        call = session.last
        assert call is not None
        if call.refusal is not None:
            why = why or call.refusal.sentence
        elif call.steps is None:
            why = why or _NO_STEPPER
        else:
            captured += call.steps.captured
            why = why or call.steps.why
        progress.step(f"{name} in a batch of {batch}")
    return {"batch": batch, "served": captured > 0, "why": why, "eager": eager, "candidate": candidate}


def _record(generate: Generate, rows: list[Question], device: torch.device) -> list[Trace]:
    """The traces of ``rows``, questions of one length, asked in one call."""
    ids = torch.tensor([row.ids for row in rows], dtype=torch.int64, device=device)
    asked: dict[str, Any] = {"max_new_tokens": rows[0].new_tokens, "do_sample": False, "num_beams": 1}
    kept = {"return_dict_in_generate": True, "output_logits": True}
    output = generate(inputs=ids, attention_mask=torch.ones_like(ids), **asked, **kept)
    answers = output.sequences[:, ids.shape[1] :].tolist()
    traces: list[Trace] = [
        {
            "prompt": row.id,
            "prompt_tokens": row.prompt_tokens,
            "prompt_digest": row.digest,
            "tokens": answer,
            "logits": [],
            "margins": [],
        }
        for row, answer in zip(rows, answers, strict=True)
    ]
    # Step by step: all logits of a long answer of many sequences need not fit a second time.
    for logits in output.logits:
        top = logits.topk(2, dim=-1).values
        margins = (top[:, 0] - top[:, 1]).tolist()
        for trace, bits, margin in zip(traces, logits.cpu().numpy(), margins, strict=True):
            trace["logits"].append(hashlib.sha256(bits.tobytes()).hexdigest())
            trace["margins"].append(margin)
    return traces
