"""Traces and timed pairs as JSON, made by hand."""

from __future__ import annotations

from typing import Any

from exactgraph.canonical import digest
from exactgraph.protocol.compare import Comparison, compare_sets


def trace(prompt: str, tokens: list[int], margins: list[float] | None = None) -> dict[str, Any]:
    """A trace whose logits differ from step to step and from prompt to prompt."""
    return {
        "prompt": prompt,
        "prompt_tokens": 4,
        "prompt_digest": digest(prompt),
        "tokens": tokens,
        "logits": [digest([prompt, step]) for step in range(len(tokens))],
        "margins": margins or [0.5 + step for step in range(len(tokens))],
    }


def with_other_bits(answer: dict[str, Any], step: int) -> dict[str, Any]:
    logits = list(answer["logits"])
    logits[step] = digest("other bits")
    return {**answer, "logits": logits}


def compared(expected: list[dict[str, Any]], got: list[dict[str, Any]]) -> Comparison:
    return compare_sets({"heldout": expected}, {"heldout": got})


def pair(eager: float, candidate: float, first: float = 0.1, tokens: int = 11) -> dict[str, Any]:
    """Seconds of both calls, of which ``first`` each were the prompt's."""
    return {
        "prompt": "heldout/0",
        "repetition": 0,
        "order": "ec",
        "eager_s": eager,
        "eager_first_s": first,
        "candidate_s": candidate,
        "candidate_first_s": first,
        "tokens": tokens,
    }
