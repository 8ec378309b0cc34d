"""What the stand-ins of one layer refuse: another order of calls, a call twice, another hidden state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from runtime_models import make_llama

from exactgraph.candidates.base import Context
from exactgraph.candidates.registry import candidate
from exactgraph.capture import capturer_for
from exactgraph.refusal import Refused

Forward = Callable[[torch.Tensor], torch.Tensor]
GROUPED = ("C025", "C026")


@pytest.fixture
def model(device: torch.device) -> Any:
    return make_llama(device, attention_bias=True)


def hidden_for(model: Any, tokens: int = 1, seed: int = 5) -> torch.Tensor:
    """Hidden states ``(1, tokens, 256)`` in the model's dtype."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn((1, tokens, 256), generator=generator).to(device=model.device, dtype=model.dtype)


def stand_ins(model: Any, name: str) -> dict[torch.nn.Module, Callable[..., Any]]:
    context = Context(capturer_for(model.device), budget=64, validated_length=64, confirmed_length=64)
    return candidate(name).install(model, {}, context).forwards


def grouped(model: Any, name: str) -> tuple[Forward, Forward, Forward, Forward]:
    """The stand-ins of norm, Q, K and V of the second layer."""
    layer = model.model.layers[1]
    forwards = stand_ins(model, name)
    attention = layer.self_attn
    return tuple(forwards[module] for module in (layer.input_layernorm, attention.q_proj, attention.k_proj, attention.v_proj))  # type: ignore[return-value]


def refused(forward: Forward, hidden: torch.Tensor, reason: str, sentence: str) -> None:
    with torch.no_grad(), pytest.raises(Refused, match=sentence) as caught:
        forward(hidden)
    assert caught.value.refusal.reason == reason


def right_round(model: Any, forwards: tuple[Forward, ...], hidden: torch.Tensor) -> None:
    layer = model.model.layers[1]
    attention = layer.self_attn
    with torch.no_grad():
        passed = forwards[0](hidden)
        got = [forward(passed) for forward in forwards[1:]]
        normalised = layer.input_layernorm(hidden)
        for output, module in zip(got, (attention.q_proj, attention.k_proj, attention.v_proj), strict=True):
            assert torch.equal(output, module(normalised))


@pytest.mark.parametrize("name", GROUPED)
def test_the_right_order_hands_out_q_k_and_v(model: Any, name: str) -> None:
    forwards = grouped(model, name)
    for seed in (1, 2):
        hidden = hidden_for(model, seed=seed)
        with torch.no_grad():
            assert forwards[0](hidden) is hidden, "the norm passes one token on"
        right_round(model, forwards, hidden)


# Indices into (norm, Q, K, V): what is called before, what is refused, and how.
WRONG = [
    ([0], 2, "projection-order", "The key projection was called where the query projection was due"),
    ([0], 3, "projection-order", "The value projection was called where the query projection was due"),
    ([0, 1], 1, "projection-order", "The query projection was called where the key projection was due"),
    ([0, 1], 3, "projection-order", "The value projection was called where the key projection was due"),
    ([0, 1, 2], 1, "projection-order", "The query projection was called where the value projection was due"),
    ([0, 1, 2], 2, "projection-order", "The key projection was called where the value projection was due"),
    ([0, 1, 2, 3], 1, "projection-order", "The query projection was called before the norm that it needs, or once more"),
    ([0, 1, 2, 3], 3, "projection-order", "The value projection was called before the norm that it needs, or once more"),
    ([], 1, "projection-order", "The query projection was called before the norm that it needs"),
]


@pytest.mark.parametrize("name", GROUPED)
@pytest.mark.parametrize(("before", "wrong", "reason", "sentence"), WRONG)
def test_any_other_order_is_refused(model: Any, name: str, before: list[int], wrong: int, reason: str, sentence: str) -> None:
    forwards = grouped(model, name)
    hidden = hidden_for(model)
    with torch.no_grad():
        for index in before:
            forwards[index](hidden)
    refused(forwards[wrong], hidden, reason, sentence)
    # Nothing is handed out until the norm begins again, and then all is right.
    refused(forwards[2], hidden, "projection-order", "before the norm that it needs")
    right_round(model, forwards, hidden_for(model, seed=9))


@pytest.mark.parametrize("name", GROUPED)
@pytest.mark.parametrize("index", [1, 2, 3])
@pytest.mark.parametrize("other", ["equal values", "normalised", "more tokens"])
def test_another_hidden_state_is_refused(model: Any, name: str, index: int, other: str) -> None:
    forwards = grouped(model, name)
    hidden = hidden_for(model)
    with torch.no_grad():
        for earlier in range(index):
            forwards[earlier](hidden)
        others = {
            "equal values": hidden.clone(),
            "normalised": model.model.layers[1].input_layernorm(hidden),
            "more tokens": hidden_for(model, 3),
        }
    refused(forwards[index], others[other], "projection-input", "something other than what the norm passed on")


def test_at_prefill_c025_checks_too(model: Any) -> None:
    norm, q, k, v = grouped(model, "C025")
    hidden = hidden_for(model, 7)
    with torch.no_grad():
        assert norm(hidden) is hidden
        q(hidden)
    refused(v, hidden, "projection-order", "The value projection was called where the key projection was due")
    with torch.no_grad():
        norm(hidden)
    refused(q, hidden.clone(), "projection-input", "something other than what the norm passed on")
    right_round(model, (norm, q, k, v), hidden)


def test_at_prefill_c026_runs_the_untouched_modules(model: Any) -> None:
    forwards = grouped(model, "C026")
    hidden = hidden_for(model, 7)
    right_round(model, forwards, hidden)
    with torch.no_grad():
        normalised = forwards[0](hidden)
        assert torch.equal(normalised, model.model.layers[1].input_layernorm(hidden))
        assert torch.equal(forwards[3](normalised), model.model.layers[1].self_attn.v_proj(normalised))


@pytest.mark.parametrize("name", ["C024", "C025", "C026"])
def test_an_mlp_takes_only_what_its_norm_passed_on(model: Any, name: str) -> None:
    layer = model.model.layers[1]
    forwards = stand_ins(model, name)
    norm, mlp = forwards[layer.post_attention_layernorm], forwards[layer.mlp]
    hidden = hidden_for(model)
    sentence = "The MLP was called with something other than what the norm before it passed on"
    refused(mlp, hidden, "mlp-input", sentence)
    with torch.no_grad():
        assert norm(hidden) is hidden
        assert torch.equal(mlp(hidden), layer.mlp(layer.post_attention_layernorm(hidden)))
    refused(mlp, hidden, "mlp-input", sentence)
    with torch.no_grad():
        norm(hidden)
        normalised = layer.post_attention_layernorm(hidden)
    refused(mlp, normalised, "mlp-input", sentence)
    with torch.no_grad():
        prompt = hidden_for(model, 4)
        assert torch.equal(mlp(norm(prompt)), layer.mlp(layer.post_attention_layernorm(prompt)))


@pytest.mark.parametrize("name", ["C022", "C023", "C024", "C025", "C026"])
def test_another_dtype_is_not_converted(model: Any, name: str) -> None:
    forwards = stand_ins(model, name)
    layer = model.model.layers[1]
    wide = hidden_for(model).double()
    with torch.no_grad():
        if name != "C022":
            assert forwards[layer.post_attention_layernorm](wide).dtype == layer.post_attention_layernorm(wide).dtype
        with pytest.raises(RuntimeError, match="dtype"):
            forwards[layer.mlp](wide)


def test_a_round_keeps_no_hidden_state(model: Any) -> None:
    norm, q, k, v = grouped(model, "C025")
    hidden = hidden_for(model, 7)
    adapter: Any = norm.__self__  # type: ignore[attr-defined]
    with torch.no_grad():
        for forward in (norm, q, k, v):
            forward(hidden)
    assert adapter._passed is None
