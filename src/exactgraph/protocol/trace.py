"""Recording what a model answers: token IDs, a digest of every step's logits, and the margin of every step.

Recording keeps all logits, so it is never timed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import torch

from exactgraph.protocol.questions import Question

Generate = Callable[..., Any]
Trace = dict[str, Any]


def greedy(question: Question, device: torch.device) -> dict[str, Any]:
    """Arguments of ``generate`` for one question: one sequence, no padding, the most likely token at each step."""
    return {
        **question.inputs(device),
        "max_new_tokens": question.new_tokens,
        "do_sample": False,
        "num_beams": 1,
    }


def record(generate: Generate, question: Question, device: torch.device) -> Trace:
    """Ask one question and keep the evidence: see the trace format in ``docs/architecture.md``.

    Logits are what ``generate`` returns as ``logits``: the model's last-position logits in fp32, before any processor. fp32
    holds every bf16 and fp16 value exactly, so equal digests mean equal bits of the model's own logits.
    """
    output = generate(**greedy(question, device), return_dict_in_generate=True, output_logits=True)
    logits = torch.cat(output.logits)
    top = logits.topk(2, dim=-1).values
    return {
        "prompt": question.id,
        "prompt_tokens": question.prompt_tokens,
        "prompt_digest": question.digest,
        "tokens": question.answer(output.sequences),
        "logits": [hashlib.sha256(row.tobytes()).hexdigest() for row in logits.cpu().numpy()],
        "margins": (top[:, 0] - top[:, 1]).tolist(),
    }


def record_sets(
    generate: Generate,
    sets: dict[str, list[Question]],
    device: torch.device,
    progress: Callable[[str], None],
) -> dict[str, list[Trace]]:
    """Ask every question of every set, in order. ``progress`` is told the id of each question when it is done."""
    traces: dict[str, list[Trace]] = {}
    for name, asked in sets.items():
        traces[name] = []
        for question in asked:
            traces[name].append(record(generate, question, device))
            progress(question.id)
    return traces
