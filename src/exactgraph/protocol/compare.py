"""Comparison of traces: token IDs decide, logits digests grade.

Nothing here has a tolerance. Two traces are equal when their token IDs are; they are bit-identical when every step's logits
digest is too. Pure JSON in and out, so that a receipt can be checked on a machine without a GPU or torch.
"""

from __future__ import annotations

from typing import Any, TypedDict

from exactgraph.protocol.grades import BIT_IDENTICAL, TOKEN_IDENTICAL


class Difference(TypedDict):
    """Where two traces part: ``margin`` is the baseline's top-1 minus top-2 logit at that step."""

    prompt: str
    step: int
    expected: int | None
    got: int | None
    margin: float | None
    kind: str


class Comparison(TypedDict):
    """Counts of equal traces (``matches`` of ``of``) and of equal logits digests, with the first difference of each kind."""

    matches: int
    of: int
    first_token_difference: Difference | None
    first_logits_difference: Difference | None
    logits_equal: int
    logits_of: int


def token_difference(expected: dict[str, Any], tokens: list[int]) -> Difference | None:
    """The first step at which ``tokens`` leave the trace ``expected``, or None where they are the same."""
    wanted: list[int] = expected["tokens"]
    for step, (want, got) in enumerate(zip(wanted, tokens, strict=False)):
        if want != got:
            return _difference(expected, step, want, got, "token")
    if len(wanted) == len(tokens):
        return None
    step = min(len(wanted), len(tokens))
    want_end = wanted[step] if step < len(wanted) else None
    got_end = tokens[step] if step < len(tokens) else None
    return _difference(expected, step, want_end, got_end, "length")


def first_tokens(trace: dict[str, Any], count: int) -> dict[str, Any]:
    """``trace`` as a call that generates ``count`` tokens would have left it. Greedy answers begin alike, however long."""
    return {**trace, "tokens": trace["tokens"][:count]}


def _difference(expected: dict[str, Any], step: int, want: int | None, got: int | None, kind: str) -> Difference:
    margins: list[float] = expected["margins"]
    margin = margins[step] if step < len(margins) else None
    return {"prompt": expected["prompt"], "step": step, "expected": want, "got": got, "margin": margin, "kind": kind}


def compare_sets(expected: dict[str, list[dict[str, Any]]], got: dict[str, list[dict[str, Any]]]) -> Comparison:
    """Compare the sets named in ``got`` with the same sets of ``expected``, prompt by prompt.

    Raises ValueError where the two do not hold answers to the same prompts: that is a fault of the harness, not a difference.
    """
    result: Comparison = {
        "matches": 0,
        "of": 0,
        "first_token_difference": None,
        "first_logits_difference": None,
        "logits_equal": 0,
        "logits_of": 0,
    }
    for name, traces in got.items():
        wanted = expected[name]
        if [trace["prompt_digest"] for trace in wanted] != [trace["prompt_digest"] for trace in traces]:
            raise ValueError(f"the traces of set {name!r} answer other prompts than the baseline's")
        for want, have in zip(wanted, traces, strict=True):
            _compare_one(want, have, result)
    return result


def _compare_one(want: dict[str, Any], have: dict[str, Any], result: Comparison) -> None:
    result["of"] += 1
    difference = token_difference(want, have["tokens"])
    if difference is None:
        result["matches"] += 1
    elif result["first_token_difference"] is None:
        result["first_token_difference"] = difference
    steps = min(len(want["logits"]), len(have["logits"]))
    result["logits_of"] += max(len(want["logits"]), len(have["logits"]))
    for step in range(steps):
        if want["logits"][step] == have["logits"][step]:
            result["logits_equal"] += 1
        elif result["first_logits_difference"] is None:
            result["first_logits_difference"] = _difference(want, step, want["tokens"][step], have["tokens"][step], "logits")


def grade(comparison: Comparison) -> str | None:
    """``bit-identical``, ``token-identical``, or None where a token differs in any run, even if it does not in others."""
    if comparison["of"] == 0 or comparison["matches"] != comparison["of"] or comparison["first_token_difference"]:
        return None
    if comparison["logits_equal"] == comparison["logits_of"]:
        return BIT_IDENTICAL
    return TOKEN_IDENTICAL


def first_difference(comparison: Comparison) -> Difference | None:
    """The difference to name in a sentence: a token where one differs, else a logit."""
    return comparison["first_token_difference"] or comparison["first_logits_difference"]


def sentence(difference: Difference) -> str:
    """A difference in words."""
    where = f"prompt {difference['prompt']}, step {difference['step']}"
    margin = "" if difference["margin"] is None else f" (the baseline's margin there: {difference['margin']:.4g})"
    if difference["kind"] == "logits":
        return f"first logits with other bits at {where}{margin}"
    if difference["kind"] == "length":
        return f"one answer ends where the other goes on, at {where}{margin}"
    return f"first other token at {where}: {difference['got']} instead of {difference['expected']}{margin}"
