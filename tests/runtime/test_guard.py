"""A model that changed after capture is noticed before its graphs are replayed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from runtime_models import prompt
from runtime_outputs import ask, assert_same, refusal_of, steps_of
from sessions import open_session
from torch.nn.attention import SDPBackend, sdpa_kernel

from exactgraph.candidates.base import Context
from exactgraph.candidates.registry import candidate
from exactgraph.capture import capturer_for
from exactgraph.refusal import Refused
from exactgraph.runtime.session import Session

Install = Callable[..., Session]


def _down(model: Any) -> Any:
    return model.model.layers[1].mlp.down_proj


def _replace(model: Any) -> None:
    _down(model).weight = torch.nn.Parameter(_down(model).weight.detach() * 1.5)


def _move(model: Any) -> None:
    _down(model).weight.data = _down(model).weight.data * 1.5


def _halve(model: Any) -> None:
    model.to(torch.float16)


def _replace_module(model: Any) -> None:
    mlp = model.model.layers[1].mlp
    mlp.down_proj = torch.nn.Linear(640, 256, bias=False, device=model.device, dtype=model.dtype)


def _hook(model: Any) -> None:
    model.model.layers[1].mlp.register_forward_hook(lambda module, inputs, output: output * 1.5)


def _pre_hook(model: Any) -> None:
    _down(model).register_forward_pre_hook(lambda module, inputs: (inputs[0] * 1.5,))


def _forward(model: Any) -> None:
    eager = _down(model).forward
    _down(model).forward = lambda hidden: eager(hidden) * 1.5


@pytest.mark.parametrize("name", ["step", "C022"])
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_replace, "model-changed"),
        (_move, "model-changed"),
        (_halve, "model-changed"),
        (_replace_module, "model-changed"),
        (_hook, "hooks"),
        (_pre_hook, "hooks"),
        (_forward, "hooks"),
    ],
)
def test_a_changed_model_runs_eager(
    llama: Any, install: Install, name: str, change: Callable[[Any], None], reason: str
) -> None:
    ids = prompt(llama.device, 12)
    with install(name) as session:
        before = ask(llama.generate, ids)
        change(llama)
        got = ask(llama.generate, ids)
        assert refusal_of(session) == reason
        assert_same(got, ask(session.eager, ids))
    assert not torch.equal(got.logits[-1], before.logits[-1]), "the change must matter, or nothing was tested"


@pytest.mark.parametrize("name", ["step", "C022"])
def test_train_mode_runs_eager_and_eval_mode_is_captured_again(llama: Any, install: Install, name: str) -> None:
    ids = prompt(llama.device, 12)
    with install(name) as session:
        llama.train()
        got = ask(llama.generate, ids)
        assert refusal_of(session) == "model-changed"
        assert_same(got, ask(session.eager, ids))
        llama.eval()
        assert_same(ask(llama.generate, ids), ask(session.eager, ids))
        assert session.last is not None
        assert session.last.refusal is None


@pytest.mark.parametrize("name", ["step", "C022"])
def test_autocast_runs_eager(llama: Any, install: Install, name: str) -> None:
    ids = prompt(llama.device, 12)
    with install(name) as session:
        with torch.autocast(llama.device.type, dtype=torch.bfloat16):
            got = ask(llama.generate, ids)
            assert refusal_of(session) == "autocast"
            assert_same(got, ask(session.eager, ids))
        assert_same(ask(llama.generate, ids), ask(session.eager, ids))
        assert session.last is not None
        assert session.last.refusal is None


def test_another_attention_implementation_runs_eager(llama: Any, install: Install) -> None:
    ids = prompt(llama.device, 12)
    with install("step") as session:
        llama.set_attn_implementation("eager")
        got = ask(llama.generate, ids)
        assert refusal_of(session) == "model-changed"
        assert_same(got, ask(session.eager, ids))


def test_a_removed_hook_is_forgotten(llama: Any, install: Install) -> None:
    ids = prompt(llama.device, 12)
    with install("step") as session:
        handle = llama.model.register_forward_hook(lambda module, inputs, output: None)
        ask(llama.generate, ids)
        assert refusal_of(session) == "hooks"
        handle.remove()
        ask(llama.generate, ids)
        assert steps_of(session) == (23, 0)


def test_a_model_with_hooks_is_refused_at_installation(llama: Any, install: Install) -> None:
    _hook(llama)
    with pytest.raises(Refused, match=r"model\.layers\.1\.mlp has a hook") as caught:
        install("step")
    assert caught.value.refusal.reason == "hooks"
    assert "generate" not in vars(llama)


@pytest.mark.parametrize("name", ["step", "C022"])
@pytest.mark.parametrize("write", ["mul_", "copy_", "data.copy_", "load_state_dict"])
def test_a_write_in_place_acts_on_the_next_call_through_the_graphs(
    llama: Any, install: Install, name: str, write: str
) -> None:
    ids = prompt(llama.device, 12)
    with install(name) as session:
        before = ask(llama.generate, ids)
        weight = _down(llama).weight
        with torch.no_grad():
            if write == "mul_":
                weight.mul_(1.5)
            elif write == "copy_":
                weight.copy_(weight * 1.5)
            elif write == "data.copy_":
                weight.data.copy_(weight * 1.5)
            else:
                llama.load_state_dict({key: value * 1.5 for key, value in llama.state_dict().items()})
        got = ask(llama.generate, ids)
        assert session.last is not None
        assert session.last.refusal is None
        if name == "step":
            assert steps_of(session) == (23, 0)
        assert_same(got, ask(session.eager, ids))
    assert not torch.equal(got.logits[-1], before.logits[-1])


def _submodule_in_train_mode(model: Any) -> Iterator[None]:
    # Its attention reads its own flag to decide about dropout.
    model.model.layers[1].self_attn.train()
    yield
    model.eval()


def _global_hook(model: Any) -> Iterator[None]:
    handle = torch.nn.modules.module.register_module_forward_hook(lambda module, inputs, output: None)
    yield
    handle.remove()


def _reduced_precision(model: Any) -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = not before
    yield
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = before


def _deterministic(model: Any) -> Iterator[None]:
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("change", [_submodule_in_train_mode, _global_hook, _reduced_precision, _deterministic])
def test_what_else_changes_eagers_bits_runs_eager(
    llama: Any, install: Install, change: Callable[[Any], Iterator[None]]
) -> None:
    with install("step") as session, contextmanager(change)(llama):
        ask(llama.generate, prompt(llama.device, 12))
        refusal_of(session)


def test_an_attention_backend_of_the_users_own_runs_eager(llama: Any) -> None:
    context = Context(capturer_for(llama.device), budget=64, validated_length=64, confirmed_length=64)
    step = candidate("step")
    with open_session(llama, step, context, "default") as session, sdpa_kernel(SDPBackend.MATH):
        ask(llama.generate, prompt(llama.device, 12))
        refusal_of(session)
