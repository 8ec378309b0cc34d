"""``encdec-compile``: one compiled step a bucket, eager's tokens, and a named refusal without a compiler."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import torch
from encdec_models import make, question
from runtime_outputs import steps_of
from sessions import open_session
from test_encdec_step import ask

from exactgraph.candidates.base import Context
from exactgraph.candidates.registry import candidate
from exactgraph.capture import capturer_for
from exactgraph.protocol.grades import TOKEN_IDENTICAL
from exactgraph.refusal import Refused
from exactgraph.runtime.session import Session

CPU = torch.device("cpu")
FAMILIES = ["whisper", "t5", "bart", "frames"]


def opened(model: Any) -> Session:
    context = Context(capturer_for(CPU), 16, 64, 256)
    chosen = candidate("encdec-compile")
    return open_session(model, chosen, context, "default")


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was to be compiled; it runs as it is."""
    functions: list[Any] = []
    monkeypatch.setattr(torch, "compile", lambda function, **how: functions.append(function) or function)
    return functions


def test_it_claims_tokens_alone() -> None:
    assert candidate("encdec-compile").claims == TOKEN_IDENTICAL


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler on this machine")
@pytest.mark.parametrize("family", FAMILIES)
def test_one_step_of_fixed_shape_serves_a_bucket(uncompiled: list[Any], family: str) -> None:
    model = make(family, CPU)
    with opened(model) as session:
        uncompiled.clear()
        for seed in (0, 1):
            inputs = question(model, seed=seed)
            expected, got = ask(session.eager, inputs, 150), ask(model.generate, inputs, 150)
            # In fp32 another kernel's last bits do not turn a token of these models.
            assert torch.equal(got.sequences, expected.sequences)
            assert steps_of(session) == (149, 0)
        assert len(uncompiled) == 2, "one for 128 slots and one for 256"


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler on this machine")
def test_padding_of_the_decoders_prompt(uncompiled: list[Any]) -> None:
    model = make("t5", CPU)
    prompt = torch.tensor([[3, 17, 40, 41, 99]])
    with opened(model) as session:
        for masked in (2, 0, 3):
            mask = torch.ones_like(prompt)
            mask[:, :masked] = 0
            inputs = {**question(model), "decoder_input_ids": prompt, "decoder_attention_mask": mask}
            expected, got = ask(session.eager, inputs), ask(model.generate, inputs)
            assert torch.equal(got.sequences, expected.sequences)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler on this machine")
@pytest.mark.parametrize("family", ["whisper", "t5"])
def test_compiled_steps_give_eagers_tokens(family: str) -> None:
    model = make(family, CPU)
    with opened(model) as session:
        inputs = question(model)
        expected, got = ask(session.eager, inputs), ask(model.generate, inputs)
        assert torch.equal(got.sequences, expected.sequences)
        assert steps_of(session) == (29, 0)


def test_no_compiler_is_a_named_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import cpp_builder
    from torch._inductor.exc import InvalidCxxCompiler

    def none() -> str:
        raise InvalidCxxCompiler

    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", none)
    with pytest.raises(Refused) as caught:
        opened(make("t5", CPU))
    assert caught.value.refusal.reason == "no-compiler"
