"""What is not captured runs eager: the same result, and the reason by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from runtime_models import make_llama, prompt
from runtime_outputs import assert_same_bits, refusal_of, steps_of
from transformers import DynamicCache, GenerationConfig, MistralConfig

from exactgraph.models.cache import cache_name
from exactgraph.runtime.session import Session

Install = Callable[..., Session]
Arguments = Callable[[Any], dict[str, Any]]


def _batch(model: Any) -> dict[str, Any]:
    return {"inputs": torch.cat([prompt(model.device, 10, seed) for seed in (1, 2)])}


def _padding(model: Any) -> dict[str, Any]:
    ids = prompt(model.device, 10)
    ids[:, :3] = model.config.pad_token_id
    mask = torch.ones_like(ids)
    mask[:, :3] = 0
    return {"inputs": ids, "attention_mask": mask}


def _inferred_padding(model: Any) -> dict[str, Any]:
    """No mask, but a padding token in the prompt: transformers masks it."""
    ids = prompt(model.device, 10)
    ids[:, :3] = 500
    return {"inputs": ids, "pad_token_id": 500}


def _embeddings(model: Any) -> dict[str, Any]:
    return {"inputs": None, "inputs_embeds": model.model.embed_tokens(prompt(model.device, 9))}


def _sliding_cache(model: Any) -> dict[str, Any]:
    config = MistralConfig(num_hidden_layers=model.config.num_hidden_layers, sliding_window=64)
    return {cache_name(model): DynamicCache(config=config)}


def _custom(model: Any, input_ids: torch.Tensor, **arguments: Any) -> torch.Tensor:
    return torch.cat([input_ids, input_ids.flip(1)], dim=1)


@pytest.fixture
def attention(device: torch.device) -> str:
    """Some of these calls need an attention mask, which not every backend takes."""
    return "math" if device.type == "cuda" else "default"


CASES: list[tuple[str, str, Arguments]] = [
    ("batch", "batch", _batch),
    ("left padding", "padding", _padding),
    ("padding that transformers infers", "padding", _inferred_padding),
    ("beams", "generation-mode", lambda model: {"num_beams": 3}),
    ("beam sampling", "generation-mode", lambda model: {"num_beams": 2, "do_sample": True}),
    ("several sequences", "batch", lambda model: {"num_return_sequences": 2, "do_sample": True}),
    ("hidden states", "inner-outputs", lambda model: {"output_hidden_states": True, "return_dict_in_generate": True}),
    ("a cache of other layers", "cache-kind", _sliding_cache),
    ("a static cache", "cache-kind", lambda model: {"cache_implementation": "static", "disable_compile": True}),
    ("no cache", "cache-use", lambda model: {"use_cache": False}),
    ("prompt lookup", "generation-mode", lambda model: {"prompt_lookup_num_tokens": 3}),
    ("an assistant", "argument", lambda model: {"assistant_model": make_llama(model.device, num_hidden_layers=1)}),
    ("chunked prefill", "cache-use", lambda model: {"prefill_chunk_size": 4}),
    ("custom_generate", "argument", lambda model: {"custom_generate": _custom}),
    (
        "embeddings",
        "argument",
        lambda model: {"inputs": None, "inputs_embeds": model.model.embed_tokens(prompt(model.device, 9))},
    ),
]


@pytest.mark.parametrize(("reason", "arguments"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_a_call_that_is_not_captured(llama: Any, install: Install, reason: str, arguments: Arguments) -> None:
    def asked() -> dict[str, Any]:
        # Anew for each call, because a call may use its arguments up.
        torch.manual_seed(3)
        base = {"inputs": prompt(llama.device, 10), "max_new_tokens": 12, "do_sample": False}
        found = {**base, **arguments(llama)}
        torch.manual_seed(3)
        return found

    with install("step") as session:
        got, after = llama.generate(**asked()), torch.rand(2, device=llama.device)
        assert refusal_of(session) == reason
        expected, eagers_after = session.eager(**asked()), torch.rand(2, device=llama.device)
        assert type(got) is type(expected)
        if isinstance(got, torch.Tensor):
            assert_same_bits(got, expected)
        else:
            assert_same_bits(got.sequences, expected.sequences)
            for step, want in zip(got.hidden_states, expected.hidden_states, strict=True):
                for layer, wanted in zip(step, want, strict=True):
                    assert_same_bits(layer, wanted)
        assert torch.equal(after, eagers_after), "the refused attempt used random numbers up"


@pytest.mark.parametrize(
    "arguments",
    [
        {"num_beams": 3},
        {"prefill_chunk_size": 4},
        {"use_cache": False},
        {"output_hidden_states": True, "return_dict_in_generate": True},
    ],
    ids=lambda arguments: next(iter(arguments)),
)
def test_after_a_refused_call_the_next_is_captured_again(llama: Any, install: Install, arguments: dict[str, Any]) -> None:
    ids = prompt(llama.device, 10)
    with install("step") as session:
        llama.generate(ids, max_new_tokens=12, do_sample=False, **arguments)
        refusal_of(session)
        got = llama.generate(ids, max_new_tokens=12, do_sample=False)
        assert steps_of(session) == (11, 0)
        assert_same_bits(got, session.eager(ids, max_new_tokens=12, do_sample=False))


def test_an_error_of_eagers_stays_eagers(llama: Any, install: Install) -> None:
    ids = prompt(llama.device, 10)
    with install("step") as session:
        for generate in (session.eager, llama.generate):
            with pytest.raises(ValueError, match="max_new_tokens"):
                generate(ids, max_new_tokens=0)
        llama.generate(ids, max_new_tokens=4, do_sample=False)
        assert steps_of(session) == (3, 0)


def test_a_refusal_from_the_generation_config_counts_too(llama: Any, install: Install) -> None:
    ids = prompt(llama.device, 10)
    with install("step") as session:
        config = GenerationConfig(max_new_tokens=12, num_beams=2, do_sample=False)
        assert_same_bits(llama.generate(ids, config), session.eager(ids, config))
        assert refusal_of(session) == "generation-mode"


def test_arguments_by_position(llama: Any, install: Install) -> None:
    ids = prompt(llama.device, 10)
    config = GenerationConfig(max_new_tokens=12, do_sample=False)
    with install("step") as session:
        assert_same_bits(llama.generate(ids, config, None, None), session.eager(ids, config, None, None))
        assert steps_of(session) == (11, 0)


def test_an_assistant_by_position(llama: Any, install: Install) -> None:
    ids = prompt(llama.device, 10)
    config = GenerationConfig(max_new_tokens=12, do_sample=False)
    with install("step") as session:
        assistant = make_llama(llama.device, num_hidden_layers=1)
        positional = (ids, config, None, None, None, None, assistant)
        assert_same_bits(llama.generate(*positional), session.eager(*positional))
        assert refusal_of(session) in ("argument", "generation-mode")


@pytest.mark.parametrize("name", ["C022", "C026"])
def test_a_cache_of_fixed_size_does_not_meet_stand_ins(llama: Any, install: Install, name: str) -> None:
    # transformers compiles the forward pass for such caches; disable_compile keeps the test quick, not the refusal away.
    arguments = {"max_new_tokens": 8, "do_sample": False, "cache_implementation": "static", "disable_compile": True}
    ids = prompt(llama.device, 10)
    with install(name) as session:
        got = llama.generate(ids, **arguments)
        assert refusal_of(session) == "compiles"
        assert_same_bits(got, session.eager(ids, **arguments))
