"""Rotary embeddings that recompute their frequencies: held still where that changes nothing, refused elsewhere."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from decoder_models import make
from runtime_models import make_llama, prompt
from runtime_outputs import ask, assert_same, attached, refusal_of, steps_of
from sessions import open_session

from exactgraph.candidates.base import Context
from exactgraph.candidates.registry import candidate
from exactgraph.capture import capturer_for
from exactgraph.models.rope import HeldRope
from exactgraph.refusal import Refused
from exactgraph.runtime.session import Session

ORIGINAL = 64
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
LONG = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0] * 16,
    "long_factor": [4.0] * 16,
    "original_max_position_embeddings": ORIGINAL,
    "factor": 4.0,
}


def dynamic(device: torch.device) -> Any:
    return make_llama(device, max_position_embeddings=ORIGINAL, rope_parameters=dict(DYNAMIC))


def long(device: torch.device) -> Any:
    return make("mistral", device, max_position_embeddings=4 * ORIGINAL, rope_parameters=dict(LONG))


def per_layer(device: torch.device) -> Any:
    """Dynamic in the layers that see everything alone."""
    kinds = {"sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}, "full_attention": dict(DYNAMIC)}
    return make("gemma3", device, max_position_embeddings=ORIGINAL, rope_parameters=kinds)


MODELS = [dynamic, long, per_layer]


@pytest.fixture
def attention(device: torch.device) -> str:
    """A full window has a mask, and flash takes none."""
    return "math" if device.type == "cuda" else "default"


def opened(model: Any, attention: str, confirmed: int) -> Session:
    context = Context(capturer_for(model.device), 512, 40, confirmed)
    step = candidate("step")
    return open_session(model, step, context, attention)


@pytest.mark.parametrize("build", MODELS)
def test_frequencies_that_cannot_change_are_held(device: torch.device, attention: str, build: Any) -> None:
    model = build(device)
    with opened(model, attention, ORIGINAL) as session:
        for tokens in (10, 30):
            ids = prompt(device, tokens)
            assert_same(ask(model.generate, ids, 30), ask(session.eager, ids, 30))
            assert steps_of(session) == (29, 0)
        assert not attached(model)


@pytest.mark.parametrize("build", MODELS)
def test_a_capacity_past_the_original_length_is_refused(device: torch.device, build: Any) -> None:
    model = build(device)
    with pytest.raises(Refused, match=f"RoPE past {ORIGINAL} tokens, and {ORIGINAL + 1} may be captured") as caught:
        candidate("step").plan(model, Context(capturer_for(device), 64, 24, ORIGINAL + 1))
    assert caught.value.refusal.reason == "dynamic-rope"
    assert not attached(model)


@pytest.mark.parametrize("build", MODELS)
def test_a_call_that_goes_on_past_the_original_length(device: torch.device, attention: str, build: Any) -> None:
    """What was captured ends before it; eager goes on, and a later call is eager's too, graphs or not."""
    model = build(device)
    with opened(model, attention, 48) as session:
        ids = prompt(device, 20)
        got = ask(model.generate, ids, 70)
        assert steps_of(session) == (28, 41)
        expected = [ask(session.eager, ids, 70), ask(session.eager, ids, 20)]
        assert_same(got, expected[0])
        for _ in range(3):
            assert_same(ask(model.generate, ids, 20), expected[1])
            assert session.last is not None
            assert session.last.refusal is None or refusal_of(session) == "model-changed"


def test_nothing_is_held_outside_the_block(device: torch.device) -> None:
    model = dynamic(device)
    rope = HeldRope(model, ORIGINAL)
    (forward,) = rope.forwards.values()
    rotary = model.model.rotary_emb
    like, far = torch.empty((1, 1, 1), device=device), torch.full((1, 1), 3 * ORIGINAL, device=device)
    with rope.held():
        forward(like, far)
    assert rotary.max_seq_len_cached == ORIGINAL
    forward(like, far)
    assert rotary.max_seq_len_cached == 3 * ORIGINAL + 1


def test_a_model_of_fixed_frequencies_has_none_to_hold(llama: Any) -> None:
    assert not HeldRope(llama, 1 << 20).forwards


def test_an_update_that_is_not_known_is_refused(device: torch.device) -> None:
    model = dynamic(device)
    kind = type(model.model.rotary_emb)

    class Own(kind):  # type: ignore[misc, valid-type]
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return super().forward(*args, **kwargs)

    model.model.rotary_emb.__class__ = Own
    with pytest.raises(Refused, match="not known how Own") as caught:
        HeldRope(model, 8)
    assert caught.value.refusal.reason == "dynamic-rope"
