"""Whole outputs of ``generate``, compared bit by bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from exactgraph.runtime.session import Session

EVERYTHING = {"return_dict_in_generate": True, "output_logits": True, "output_scores": True}


def ask(generate: Callable[..., Any], ids: torch.Tensor, tokens: int = 24, **arguments: Any) -> Any:
    """One greedy call, unless ``arguments`` say otherwise, that returns all there is."""
    return generate(ids, **{"max_new_tokens": tokens, "do_sample": False, **EVERYTHING, **arguments})


def assert_same_bits(got: torch.Tensor, expected: torch.Tensor) -> None:
    assert (got.dtype, got.shape, got.device) == (expected.dtype, expected.shape, expected.device)
    assert torch.equal(got.contiguous().view(torch.uint8), expected.contiguous().view(torch.uint8))


def assert_same(got: Any, expected: Any) -> None:
    """Sequences, scores and logits."""
    assert_same_bits(got.sequences, expected.sequences)
    for name in ("scores", "logits"):
        steps, wanted = got[name], expected[name]
        assert len(steps) == len(wanted) > 0
        for step, want in zip(steps, wanted, strict=True):
            assert_same_bits(step, want)


def assert_same_cache(got: Any, expected: Any) -> None:
    assert type(got) is type(expected)
    assert got.get_seq_length() == expected.get_seq_length()
    for layer, want in zip(got.layers, expected.layers, strict=True):
        assert_same_bits(layer.keys, want.keys)
        assert_same_bits(layer.values, want.values)


def steps_of(session: Session) -> tuple[int, int]:
    """Captured and eager steps of the last call, which must not have been refused."""
    assert session.last is not None
    assert session.last.refusal is None, session.last.refusal
    assert session.last.steps is not None
    return session.last.steps.captured, session.last.steps.eager


def refusal_of(session: Session) -> str:
    """The reason for which the last call ran eager."""
    assert session.last is not None
    assert session.last.refusal is not None, "the last call did not run eager"
    assert session.last.refusal.sentence.endswith(".")
    assert session.last.steps is None
    return session.last.refusal.reason


def attached(model: Any) -> list[str]:
    """Names of the modules that have a forward of their own."""
    return [name for name, module in model.named_modules() if "forward" in vars(module)]
