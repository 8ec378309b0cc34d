"""Processors that only forbid tokens: eager's answers, and the host is not asked in each step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from encdec_models import make, question
from runtime_models import prompt
from runtime_outputs import EVERYTHING, assert_same, steps_of
from sessions import open_session
from transformers import SuppressTokensAtBeginLogitsProcessor, SuppressTokensLogitsProcessor

from exactgraph.candidates.base import Context
from exactgraph.capture import capturer_for
from exactgraph.runtime.session import Session
from exactgraph.runtime.suppressed import Suppressed

TOKENS = 24
KINDS = (SuppressTokensLogitsProcessor, SuppressTokensAtBeginLogitsProcessor)


def _counted(kind: Any, names: list[str]) -> Callable[..., Any]:
    own = kind.__call__

    def counted(self: Any, input_ids: torch.Tensor, scores: torch.Tensor) -> Any:
        names.append(kind.__name__)
        return own(self, input_ids, scores)

    return counted


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of transformers' processors, each time one was asked."""
    names: list[str] = []
    for kind in KINDS:
        monkeypatch.setattr(kind, "__call__", _counted(kind, names))
    return names


def answered(generate: Callable[..., Any], inputs: dict[str, Any], **arguments: Any) -> Any:
    return generate(**inputs, **{"max_new_tokens": TOKENS, "do_sample": False, **EVERYTHING, **arguments})


def most_likely(answer: Any) -> list[int]:
    """The tokens that eager chose, each once."""
    return sorted({int(scores.argmax()) for scores in answer.scores})


def assert_forbidden(session: Session, inputs: dict[str, Any], asked: list[str], **arguments: Any) -> Any:
    """Eager's answer under ``arguments``, which is not the one without; processors are asked about the prompt alone."""
    free, expected = answered(session.eager, inputs), answered(session.eager, inputs, **arguments)
    assert not torch.equal(expected.sequences, free.sequences), "nothing was forbidden that would have been chosen"
    asked.clear()
    got = answered(session.model.generate, inputs, **arguments)
    assert_same(got, expected)
    return got


def test_a_decoder(device: torch.device, attention: str, llama: Any, asked: list[str]) -> None:
    inputs = {"inputs": prompt(device, 12)}
    with open_session(llama, "step", Context(capturer_for(device), 512, 64, 256), attention) as session:
        chosen = most_likely(answered(session.eager, inputs))
        assert_forbidden(session, inputs, asked, suppress_tokens=chosen[::2], begin_suppress_tokens=chosen[1::2])
        assert steps_of(session) == (TOKENS - 1, 0)
        assert sorted(asked) == sorted(kind.__name__ for kind in KINDS)


@pytest.mark.parametrize("later", [0, 5, TOKENS - 1])
def test_a_length_at_which_tokens_are_forbidden(
    device: torch.device, attention: str, llama: Any, asked: list[str], later: int
) -> None:
    inputs = {"inputs": prompt(device, 12)}
    with open_session(llama, "step", Context(capturer_for(device), 512, 64, 256), attention) as session:
        chosen = int(answered(session.eager, inputs).sequences[0, 12 + later])
        processor = SuppressTokensAtBeginLogitsProcessor([chosen], 12 + later, device=device)
        got = assert_forbidden(session, inputs, asked, logits_processor=[processor])
        assert int(got.sequences[0, 12 + later]) != chosen
        assert asked == ["SuppressTokensAtBeginLogitsProcessor"]


def test_an_end_is_looked_at_behind_the_step(device: torch.device, attention: str, llama: Any) -> None:
    inputs = {"inputs": prompt(device, 12)}
    with open_session(llama, "step", Context(capturer_for(device), 512, 64, 256), attention) as session:
        chosen = most_likely(answered(session.eager, inputs))[::2]
        under = answered(session.eager, inputs, suppress_tokens=chosen)
        ends = [int(under.sequences[0, 12 + 9])]
        expected = answered(session.eager, inputs, suppress_tokens=chosen, eos_token_id=ends, pad_token_id=0)
        assert expected.sequences.shape[1] < 12 + TOKENS
        got = answered(llama.generate, inputs, suppress_tokens=chosen, eos_token_id=ends, pad_token_id=0)
        assert_same(got, expected)


def test_eager_goes_on_where_no_more_is_captured(device: torch.device, llama: Any, asked: list[str]) -> None:
    inputs = {"inputs": prompt(device, 12)}
    attention = "math" if device.type == "cuda" else "default"
    context = Context(capturer_for(device), 4, 16, 64)
    with open_session(llama, "step", context, attention) as session:
        for lane in session._installation.stepper:  # type: ignore[union-attr]
            lane.classes = []
        chosen = most_likely(answered(session.eager, inputs))
        assert_forbidden(session, inputs, asked, suppress_tokens=chosen[::2])
        captured, eager = steps_of(session)
        assert captured
        assert eager
        # About the prompt, and about each eager step.
        assert len(asked) == 1 + eager


@pytest.mark.parametrize("tokens", [TOKENS, 140])
def test_a_whisper(device: torch.device, asked: list[str], tokens: int) -> None:
    """Also past the end of a bucket."""
    model, attention = make("whisper", device), "math" if device.type == "cuda" else "default"
    inputs = question(model)
    with open_session(model, "encdec-step", Context(capturer_for(device), 512, 64, 256), attention) as session:
        model.generation_config.suppress_tokens = most_likely(answered(session.eager, inputs))[::2]
        expected = answered(session.eager, inputs, max_new_tokens=tokens)
        asked.clear()
        got = answered(model.generate, inputs, max_new_tokens=tokens)
        assert_same(got, expected)
        assert steps_of(session) == (tokens - 1, 0)
        assert asked == ["SuppressTokensLogitsProcessor"]


def test_other_processors_are_asked_in_each_step() -> None:
    class Own(SuppressTokensLogitsProcessor):
        pass

    known = SuppressTokensLogitsProcessor([1])
    assert Suppressed.known([known]) is not None
    assert Suppressed.known([known, Own([2])]) is None
