"""Compilers and static caches as candidates: they claim tokens only, and say by name where they cannot run."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import pytest
import torch
from decoder_models import make
from runtime_models import make_llama, prompt
from runtime_outputs import ask
from sessions import open_session

from exactgraph.candidates.base import Context
from exactgraph.candidates.registry import candidate
from exactgraph.capture import capturer_for
from exactgraph.protocol.grades import TOKEN_IDENTICAL
from exactgraph.refusal import Refused
from exactgraph.runtime.session import Session

Install = Callable[..., Session]
CPU = torch.device("cpu")


def context() -> Context:
    return Context(capturer_for(CPU), budget=8, validated_length=64, confirmed_length=128)


@pytest.mark.parametrize("name", ["static", "static-compile", "compile", "static-step-compile"])
def test_none_claims_equal_bits(name: str) -> None:
    assert candidate(name).claims == TOKEN_IDENTICAL


def test_static_decodes_over_the_static_cache(llama: Any, install: Install) -> None:
    ids = prompt(llama.device, 10)
    with install("static") as session:
        got = ask(llama.generate, ids, 24)
        assert session.last is not None
        assert session.last.refusal is None
        kind = next(got[key] for key in ("cache", "past_key_values") if key in got)
        assert type(kind).__name__ == "StaticCache"
        if llama.device.type == "cpu":
            # In fp32 another kernel's last bits do not turn a token of this model.
            assert torch.equal(got.sequences, ask(session.eager, ids, 24).sequences)


def test_transformers_compiles_on_accelerators_only() -> None:
    with pytest.raises(Refused) as caught:
        candidate("static-compile").plan(make_llama(CPU), context())
    assert caught.value.refusal.reason == "not-compiled-here"


def test_no_compiler_is_a_named_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import cpp_builder
    from torch._inductor.exc import InvalidCxxCompiler

    def none() -> str:
        raise InvalidCxxCompiler

    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", none)
    with pytest.raises(Refused) as caught:
        candidate("compile").plan(make_llama(CPU), context())
    assert caught.value.refusal.reason == "no-compiler"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler on this machine")
def test_compile_runs_the_compiled_forward_and_leaves_the_model_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_llama(CPU, num_hidden_layers=1)
    compiled = []
    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function, **how: compiled.append(function) or real(function, **how))
    chosen = candidate("compile")
    with open_session(model, chosen, context(), "default") as session:
        got = ask(model.generate, prompt(CPU, 10), 12)
        assert session.last is not None
        assert session.last.refusal is None
        assert torch.equal(got.sequences, ask(session.eager, prompt(CPU, 10), 12).sequences)
    assert len(compiled) == 1
    assert "forward" not in vars(model)


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a CPU")
def test_a_compiled_step_goes_on_from_bucket_to_bucket() -> None:
    llama = make_llama(CPU, num_hidden_layers=2)
    step = candidate("static-step-compile")
    chosen = Context(capturer_for(CPU), budget=8, validated_length=64, confirmed_length=200)
    with open_session(llama, step, chosen, "default") as session:
        ids = prompt(CPU, 110)
        # In fp32 the last bits that a compiler changes do not turn a token of this model.
        assert torch.equal(ask(llama.generate, ids, 40).sequences, ask(session.eager, ids, 40).sequences)
        assert session.last is not None
        assert session.last.steps is not None
        assert (session.last.steps.captured, session.last.steps.eager) == (39, 0)


def test_a_compiled_step_of_a_window_is_refused() -> None:
    model = make("mistral-window", CPU)
    with pytest.raises(Refused, match="attends to a window") as caught:
        candidate("static-step-compile").plan(model, context())
    assert caught.value.refusal.reason == "sliding-window"
