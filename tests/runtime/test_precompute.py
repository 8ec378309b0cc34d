"""Encoder outputs ahead of the decode loop: where they are kept, what they are worth, and that they are the right ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from encdec_models import make, question
from runtime_outputs import assert_same_bits, steps_of
from test_encdec_step import ask, attention, opened  # noqa: F401

from exactgraph.capture import capturer_for
from exactgraph.protocol.grades import BIT_IDENTICAL, TOKEN_IDENTICAL
from exactgraph.refusal import UserError
from exactgraph.runtime.attention import pinned
from exactgraph.runtime.precompute import CapturedEncoder, Precomputed, encode_as_generate, grade_of, precompute

PLENTY = 1 << 30
FAMILIES = ["whisper", "t5", "bart", "frames"]
ASKED = {"max_new_tokens": 12, "do_sample": False}


def _windows(model: Any, count: int = 5) -> list[dict[str, torch.Tensor]]:
    return [question(model, seed=seed) for seed in range(count)]


@pytest.mark.parametrize("family", FAMILIES)
def test_one_at_a_time_has_the_bits_of_generate(device: torch.device, attention: str, family: str) -> None:  # noqa: F811
    model = make(family, device)
    windows = _windows(model)
    with opened(model, attention) as session, pinned(attention):
        for encoder in (None, CapturedEncoder(model, capturer_for(device))):
            outputs = precompute(model, windows, 1, PLENTY, encoder)
            assert grade_of(model, windows, outputs, model.generate, **ASKED) == BIT_IDENTICAL
            for window, other, states in zip(windows, windows[1:] + windows[:1], outputs, strict=True):
                # With another window's main input, so that the answer can only come from the given output.
                asked = {**window, model.main_input_name: other[model.main_input_name]}
                got = model.generate(**asked, encoder_outputs=states, **ASKED)
                assert_same_bits(got, session.eager(**window, **ASKED))
                assert steps_of(session) == (11, 0)


@pytest.mark.parametrize("family", FAMILIES)
def test_batches_hold_the_windows_in_order(device: torch.device, family: str) -> None:
    model = make(family, device)
    windows = _windows(model, 7)
    outputs = precompute(model, windows, 3, PLENTY)
    assert len(outputs) == 7
    for window, states in zip(windows, outputs, strict=True):
        with torch.no_grad():
            expected = encode_as_generate(model, window)
        torch.testing.assert_close(states[0], expected, rtol=2e-2, atol=2e-2)
    assert not torch.equal(outputs[0][0], outputs[1][0])


@pytest.mark.parametrize("way", ["batched", "captured"])
def test_layers_are_given_memory_in_order_and_make_the_same_bits(device: torch.device, way: str) -> None:
    model = make("whisper", device)
    windows = _windows(model, 3)
    rows = {name: torch.cat([window[name] for window in windows]) for name in windows[0]}
    batch = 3 if way == "batched" else 1
    with torch.no_grad():
        one_by_one = torch.cat([encode_as_generate(model, window) for window in windows])
        expected = encode_as_generate(model, rows) if way == "batched" else one_by_one
    given: list[bool] = []
    with model.get_encoder().layers[0].register_forward_pre_hook(lambda _, inputs: given.append(inputs[0].is_contiguous())):
        with torch.no_grad():
            encode_as_generate(model, rows)
        assert given == [False]  # or there is nothing to put in order
        encoder = CapturedEncoder(model, capturer_for(device)) if way == "captured" else None
        outputs = precompute(model, windows, batch, PLENTY, encoder)
    assert all(given[1:])
    for states, theirs in zip(outputs, expected, strict=True):
        assert_same_bits(states[0], theirs[None])


def test_windows_of_other_shapes_get_batches_of_their_own(device: torch.device) -> None:
    model = make("t5", device)
    windows = [question(model, seed=seed, tokens=tokens) for seed, tokens in enumerate((6, 6, 9, 9, 6))]
    outputs = precompute(model, windows, 4, PLENTY)
    assert [states[0].shape[1] for states in outputs] == [6, 6, 9, 9, 6]


def test_what_does_not_fit_waits_on_the_host(device: torch.device) -> None:
    model = make("t5", device)
    windows = _windows(model)
    size = encode_as_generate(model, windows[0]).nbytes
    everything = precompute(model, windows, 2, PLENTY)
    some = precompute(model, windows, 2, 2 * size + size // 2)
    none = precompute(model, windows, 2, 0)
    assert (everything.on_device, some.on_device, none.on_device) == (5, 2, 0)
    for one, two, three in zip(everything, some, none, strict=True):
        assert one[0].device.type == two[0].device.type == three[0].device.type == device.type
        assert_same_bits(one[0], two[0])
        assert_same_bits(one[0], three[0])


def test_the_grade_tells_bits_from_tokens_from_neither(device: torch.device) -> None:
    model = make("t5", device)
    windows = _windows(model, 3)
    right = precompute(model, windows, 1, PLENTY)

    def changed(change: Any) -> Precomputed:
        outputs = Precomputed(device, PLENTY)
        for states in right:
            outputs.append(change(states[0]))
        return outputs

    def grade(change: Any) -> str | None:
        return grade_of(model, windows, changed(change), model.generate, **ASKED)

    assert grade(lambda states: states) == BIT_IDENTICAL
    # One unit in the last place of one number: nothing that a token could depend on.
    last = torch.zeros_like(right[0][0], dtype=torch.int32 if model.dtype == torch.float32 else torch.int16)
    last[0, 0, 0] = 1
    assert grade(lambda states: (states.view(last.dtype) ^ last).view(states.dtype)) == TOKEN_IDENTICAL
    assert grade(lambda states: -states) is None


def test_the_captured_encoder_is_captured_once_a_shape(device: torch.device) -> None:
    model = make("t5", device)
    capturer = capturer_for(device)
    encoder = CapturedEncoder(model, capturer)
    windows = [question(model, seed=seed, tokens=tokens) for seed, tokens in enumerate((6, 6, 9, 6))]
    outputs = precompute(model, windows, 1, PLENTY, encoder)
    assert capturer.graphs == 2
    assert grade_of(model, windows, outputs, model.generate, **ASKED) == BIT_IDENTICAL


def test_the_captured_encoder_sees_the_mask(device: torch.device) -> None:
    model = make("t5", device)
    encoder = CapturedEncoder(model, capturer_for(device))
    window = question(model)
    for masked in (0, 3, 5, 0):
        mask = torch.ones_like(window["input_ids"])
        mask[:, 12 - masked :] = 0
        inputs = {**window, "attention_mask": mask}
        with torch.no_grad():
            assert_same_bits(encoder(inputs), encode_as_generate(model, inputs))


def test_a_batch_of_none_is_refused(device: torch.device) -> None:
    with pytest.raises(UserError, match="at least 1"):
        precompute(make("t5", device), [], 0, PLENTY)
