"""``step`` on decoders of many families: eager's bits over more than a hundred tokens, or a refusal by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from decoder_models import FAMILIES, WINDOW, WINDOWED, make, make_of
from runtime_models import make_llama, prompt
from runtime_outputs import ask, assert_same, assert_same_cache, refusal_of, steps_of
from sessions import open_session
from torch import nn

from exactgraph.candidates.base import Context
from exactgraph.candidates.registry import candidate
from exactgraph.capture import capturer_for
from exactgraph.models.cache import cache_of
from exactgraph.refusal import Refused
from exactgraph.runtime.session import Session

#: Answers on a CPU, and on a GPU, where a length costs less.
TOKENS, TOKENS_ON_A_GPU = 110, 320


@pytest.fixture
def attention(device: torch.device) -> str:
    """A full window has a mask, and flash takes none."""
    return "math" if device.type == "cuda" else "default"


def opened(model: Any, attention: str, budget: int = 512, confirmed: int = 256) -> Session:
    context = Context(capturer_for(model.device), budget, 64, confirmed)
    step = candidate("step")
    return open_session(model, step, context, attention)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_decoder_has_eagers_bits(device: torch.device, attention: str, family: str) -> None:
    model, tokens = make(family, device), TOKENS_ON_A_GPU if device.type == "cuda" else TOKENS
    with opened(model, attention, confirmed=384) as session:
        ids = prompt(device, 10)
        expected = ask(session.eager, ids, tokens)
        got = ask(model.generate, ids, tokens)
        assert_same(got, expected)
        assert_same_cache(cache_of(got), cache_of(expected))
        assert steps_of(session) == (tokens - 1, 0)
        assert len(set(got.sequences[0, 10:].tolist())) > 8, "the answers are degenerate"


@pytest.mark.gpu
@pytest.mark.parametrize("family", sorted({*FAMILIES} - {*WINDOWED}))
def test_a_decoder_without_a_window_has_eagers_bits_under_flash(family: str) -> None:
    device = torch.device("cuda", 0)
    model = make(family, device)
    with opened(model, "flash", budget=320, confirmed=384) as session:
        ids = prompt(device, 10)
        assert_same(ask(model.generate, ids, TOKENS_ON_A_GPU), ask(session.eager, ids, TOKENS_ON_A_GPU))
        assert steps_of(session) == (TOKENS_ON_A_GPU - 1, 0)


@pytest.mark.parametrize("family", WINDOWED)
def test_a_prompt_longer_than_the_window(device: torch.device, attention: str, family: str) -> None:
    model = make(family, device)
    with opened(model, attention) as session:
        for tokens in (WINDOW - 1, WINDOW, WINDOW + 1, 40):
            ids = prompt(device, tokens, seed=tokens)
            expected, got = ask(session.eager, ids, 6), ask(model.generate, ids, 6)
            assert_same(got, expected)
            assert_same_cache(cache_of(got), cache_of(expected))
            assert steps_of(session) == (5, 0)


@pytest.mark.parametrize("family", ["mistral-window", "gemma3"])
@pytest.mark.parametrize("budget", [3, 20])
def test_eager_goes_on_with_the_window_that_it_would_have(
    device: torch.device, attention: str, family: str, budget: int
) -> None:
    model = make(family, device)
    with opened(model, attention, budget=budget) as session:
        ids = prompt(device, 10)
        expected, got = ask(session.eager, ids, 40), ask(model.generate, ids, 40)
        assert_same(got, expected)
        assert_same_cache(cache_of(got), cache_of(expected))
        # A class serves the lengths before the window is full; after that each length has a graph of its own.
        (lane,) = session._installation.stepper  # type: ignore[union-attr, misc]
        assert bool(lane.classes) == (device.type == "cpu"), "the math backend has none"
        captured = (WINDOW - 1 - len(ids[0]) if lane.classes else 0) + budget
        assert steps_of(session) == (captured, 39 - captured)
        assert session.steps.why is not None
        assert f"All {budget} lengths" in session.steps.why


def test_calls_of_other_lengths_leave_nothing_in_the_window(device: torch.device, attention: str) -> None:
    model = make("gemma3", device)
    with opened(model, attention) as session:
        for tokens in (40, 5, 20):
            ids = prompt(device, tokens, seed=tokens)
            assert_same(ask(model.generate, ids, 20), ask(session.eager, ids, 20))
            for lane in session._installation.stepper:  # type: ignore[union-attr]
                for bucket in lane.cache._buckets.values():
                    for buffer in (*bucket.keys, *bucket.values):
                        buffer.fill_(float("nan"))


def test_phi3_runs_eager_where_it_would_begin_anew(device: torch.device, attention: str) -> None:
    model = make("phi3", device, original_max_position_embeddings=32)
    with opened(model, attention, confirmed=64) as session:
        ids = prompt(device, 20)
        # To its limit and not beyond.
        assert_same(ask(model.generate, ids, 12), ask(session.eager, ids, 12))
        assert steps_of(session) == (11, 0)
        assert_same(ask(model.generate, ids, 30), ask(session.eager, ids, 30))
        assert refusal_of(session) == "begins-anew"


class OwnInputs:
    """Mixed into a model: inputs of a step as the model likes them."""

    def prepare_inputs_for_generation(self, *args: Any, **kwargs: Any) -> Any:
        return super().prepare_inputs_for_generation(*args, **kwargs)  # type: ignore[misc]


def _with_own_inputs(device: torch.device) -> Any:
    model = make_llama(device)
    model.__class__ = type("OwnLlama", (OwnInputs, type(model)), {})
    return model


def _t5(device: torch.device) -> Any:
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {"d_model": 32, "d_kv": 16, "d_ff": 32, "num_layers": 1, "num_heads": 2, "vocab_size": 64}
    return T5ForConditionalGeneration(T5Config(**sizes, decoder_start_token_id=0)).to(device).eval()


def _mamba(device: torch.device) -> Any:
    from transformers import MambaConfig, MambaForCausalLM

    return MambaForCausalLM(MambaConfig(hidden_size=32, num_hidden_layers=1, vocab_size=64)).to(device).eval()


REFUSED = {
    "own inputs": (_with_own_inputs, "own-inputs", "prepare_inputs_for_generation of its own"),
    "an encoder": (_t5, "encoder-decoder", "has an encoder"),
    "no positions": (_mamba, "step-arguments", "takes no position_ids"),
    "a convolution": (
        lambda device: make_of("Lfm2", device, layer_types=["conv", "full_attention", "conv"]),
        "cache-layers",
        "LinearAttentionLayer",
    ),
    "a window of one token": (
        lambda device: make("mistral-window", device, sliding_window=1),
        "sliding-window",
        "of 1 tokens",
    ),
    "experts in a loop": (
        lambda device: make("mixtral", device, experts_implementation="eager"),
        "synchronises",
        "MixtralForCausalLM calls aten::",
    ),
}


@pytest.mark.parametrize(("build", "reason", "words"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_captured_is_refused_by_name(device: torch.device, build: Any, reason: str, words: str) -> None:
    model = build(device)
    with pytest.raises(Refused, match=words) as caught:
        candidate("step").plan(model, Context(capturer_for(device), 64, 24, 48))
    assert caught.value.refusal.reason == reason
    assert caught.value.refusal.sentence.endswith(".")
    assert not [name for name, module in model.named_modules() if "forward" in vars(module)]


class Reads(nn.Module):
    """An MLP that waits for the device in a way of its own, and changes nothing."""

    def __init__(self, inner: nn.Module, read: Any) -> None:
        super().__init__()
        self.inner, self.read = inner, read

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        self.read(hidden)
        result: torch.Tensor = self.inner(hidden)
        return result


def _write_through_a_mask(hidden: torch.Tensor) -> None:
    other = hidden.clone()
    other[other > 3] = 0


READS = {
    "item": (lambda hidden: hidden.sum().item(), "_local_scalar_dense"),
    "if": (lambda hidden: bool(hidden.sum() > 0), "_local_scalar_dense"),
    "tolist": (lambda hidden: hidden[0, 0, :2].tolist(), "Tensor.tolist"),
    "numpy": (lambda hidden: hidden.float().cpu().numpy(), "Tensor.cpu"),
    "nonzero": (lambda hidden: (hidden > 0).nonzero(), "aten::nonzero"),
    "where": (lambda hidden: torch.where(hidden > 0), "aten::nonzero"),
    "equal": (lambda hidden: torch.equal(hidden, hidden), "aten::equal"),
    "a mask": (lambda hidden: hidden[hidden > 0], "aten::index with a mask"),
    "a mask written": (_write_through_a_mask, "with a mask"),
    "masked_select": (lambda hidden: hidden.masked_select(hidden > 0), "aten::masked_select"),
    "unique": (lambda hidden: hidden.round().unique(), "unique"),
    "repeats": (lambda hidden: torch.repeat_interleave((hidden[0, 0] > 0).long()), "repeat_interleave"),
}


@pytest.mark.parametrize(("read", "words"), READS.values(), ids=READS)
def test_a_step_that_waits_for_the_device_is_refused_at_planning(device: torch.device, read: Any, words: str) -> None:
    model = make_llama(device)
    model.model.layers[1].mlp = Reads(model.model.layers[1].mlp, read)
    with pytest.raises(Refused, match=words) as caught:
        candidate("step").plan(model, Context(capturer_for(device), 64, 24, 48))
    assert caught.value.refusal.reason == "synchronises"


def test_what_waits_beyond_validations_longest_alone_is_refused_too(device: torch.device) -> None:
    model = make_llama(device)
    attention = model.model.layers[0].self_attn
    own = attention.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        cache = kwargs.get("cache", kwargs.get("past_key_values"))
        if cache.get_seq_length() > 30:
            args[0].sum().item() if args else kwargs["hidden_states"].sum().item()
        return own(*args, **kwargs)

    attention.forward = forward
    with pytest.raises(Refused, match="_local_scalar_dense"):
        candidate("step").plan(model, Context(capturer_for(device), 64, 24, 48))
