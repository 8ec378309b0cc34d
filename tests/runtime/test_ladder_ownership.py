"""The ladder and memory: nothing that a caller can reach lies in a graph's buffers, and the model stays the user's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from ladder_models import make
from runtime_models import prompt
from runtime_outputs import ask, assert_same, assert_same_bits, assert_same_cache, attached
from transformers import DynamicCache, StaticCache
from transformers.cache_utils import DynamicLayer

from exactgraph.candidates.base import Context
from exactgraph.candidates.lending import Lending
from exactgraph.candidates.registry import candidate
from exactgraph.capture import capturer_for
from exactgraph.models.cache import cache_name, cache_of
from exactgraph.runtime.attention import pinned
from exactgraph.runtime.session import Session

Install = Callable[..., Session]
LADDER = ("C022", "C023", "C024", "C025", "C026")
STATES = {"output_hidden_states": True}


def tensors(output: Any) -> list[torch.Tensor]:
    """Every floating tensor of an answer: scores, logits, hidden states of each step and layer."""
    found = [*output.scores, *output.logits]
    for step in output.hidden_states or ():
        found.extend(step)
    return found


def assert_all_same(got: Any, expected: Any) -> None:
    assert_same(got, expected)
    for tensor, want in zip(tensors(got), tensors(expected), strict=True):
        assert_same_bits(tensor, want)


@pytest.mark.parametrize("name", LADDER)
def test_interleaved_answers_stay_what_they_were(llama: Any, install: Install, name: str) -> None:
    """Two answers made by turns, a few tokens a time; each part is kept, and compared when both are complete."""
    with install(name) as session:
        kept: list[tuple[Any, Any, Any]] = []
        ids = [prompt(llama.device, tokens, tokens) for tokens in (9, 14)]
        caches: list[Any] = [None, None]
        eagers: list[Any] = [None, None]
        for _ in range(4):
            for turn in (0, 1):
                got = ask(llama.generate, ids[turn], 3, **STATES, **{cache_name(llama): caches[turn]})
                copied = copy.deepcopy(got)
                expected = ask(session.eager, ids[turn], 3, **STATES, **{cache_name(llama): eagers[turn]})
                kept.append((got, copied, expected))
                caches[turn], eagers[turn] = cache_of(got), cache_of(expected)
                ids[turn] = got.sequences
        for got, copied, expected in kept:
            assert_all_same(got, copied)
            assert_all_same(got, expected)
        for cache, eager in zip(caches, eagers, strict=True):
            assert_same_cache(cache, eager)


@pytest.mark.parametrize("name", LADDER)
def test_returned_tensors_share_no_memory_with_later_steps(llama: Any, install: Install, name: str) -> None:
    with install(name):
        output = ask(llama.generate, prompt(llama.device, 12), output_scores=False, **STATES)
    ends = [step[-1] for step in output.hidden_states[1:]]
    for kind in (output.logits, ends):
        addresses = {tensor.untyped_storage().data_ptr() for tensor in kind}
        assert len(addresses) == len(kind)


def kept_by_a_loop(model: Any, token: torch.Tensor, cache: Any, steps: int) -> list[torch.Tensor]:
    """What a loop of the user's own keeps: each step's logits as the model gave them, and the last hidden state."""
    kept = []
    for _ in range(steps):
        output = model(input_ids=token, output_hidden_states=True, use_cache=True, **{cache_name(model): cache})
        kept.extend((output.logits, *output.hidden_states))
        token = output.logits[:, -1:].argmax(-1)
    return kept


@pytest.mark.parametrize("name", LADDER)
@pytest.mark.parametrize("family", ["llama", "smollm3"])
def test_a_loop_of_the_users_own_may_keep_what_it_gets(device: torch.device, family: str, name: str) -> None:
    """The model's outputs themselves, without the copies that transformers' loop makes."""
    model = make(family, device)
    context = Context(capturer_for(device), budget=64, validated_length=64, confirmed_length=64)

    def loop(model: Any, input_ids: torch.Tensor, **arguments: Any) -> list[torch.Tensor]:
        first = kept_by_a_loop(model, input_ids[:, :1], DynamicCache(config=model.config), 5)
        copies = [tensor.clone() for tensor in first]
        second = kept_by_a_loop(model, input_ids[:, 1:2], DynamicCache(config=model.config), 5)
        for tensor, copied in zip(first, copies, strict=True):
            assert_same_bits(tensor, copied)
        return first + second

    attention = "flash" if device.type == "cuda" else "default"
    ids = prompt(device, 2)
    with Session(model, candidate(name), {}, context, attention) as session:
        got = model.generate(ids, custom_generate=loop, max_new_tokens=4)
        for tensor, want in zip(got, session.eager(ids, custom_generate=loop, max_new_tokens=4), strict=True):
            assert_same_bits(tensor, want)


class Keeping(DynamicLayer):
    """A user's cache that keeps every tensor as it was given and joins them when they are asked for."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self.parts: list[tuple[torch.Tensor, torch.Tensor]] = []

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.is_initialized = True
        self.parts.append((key_states, value_states))
        self.keys, self.values = (torch.cat(parts, dim=-2) for parts in zip(*self.parts, strict=True))
        return self.keys, self.values


class KeepingCache(DynamicCache):
    """The same as a class of the user's own."""


@pytest.mark.parametrize("name", LADDER)
@pytest.mark.parametrize("family", ["llama", "smollm3"])
@pytest.mark.parametrize("kind", ["layers", "class"])
def test_a_cache_that_keeps_what_it_is_given(device: torch.device, family: str, kind: str, name: str) -> None:
    model = make(family, device)
    context = Context(capturer_for(device), budget=64, validated_length=64, confirmed_length=64)
    attention = "flash" if device.type == "cuda" else "default"

    def cache() -> Any:
        made = DynamicCache(config=model.config) if kind == "layers" else KeepingCache(config=model.config)
        made.layers = [Keeping() for _ in range(model.config.num_hidden_layers)]
        return made

    ids = prompt(device, 5)
    with Session(model, candidate(name), {}, context, attention) as session:
        got = ask(model.generate, ids, 12, **{cache_name(model): cache()})
        expected = ask(session.eager, ids, 12, **{cache_name(model): cache()})
    assert_same(got, expected)


class Recording(torch.nn.Module):
    """Stands for a decoder, and keeps the arguments of each call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def forward(self, *args: Any, **kwargs: Any) -> None:
        self.calls.append((args, kwargs))


def test_only_what_copies_is_lent_a_buffer() -> None:
    """A copy for every layer and step would cost time, so transformers' own caches must not fall under the exception."""
    model = make("llama", torch.device("cpu"))
    own = DynamicCache(config=model.config)
    static = StaticCache(config=model.config, max_cache_len=16)
    mixed = DynamicCache(config=model.config)
    mixed.layers = [Keeping()]
    lazy = DynamicCache()
    lazy.layer_class_to_replicate = Keeping
    ids, name = prompt(model.device, 4), cache_name(model)
    for cache, lent in ((None, True), (own, True), (static, True), (KeepingCache(), False), (mixed, False), (lazy, False)):
        for attention, reads in (("sdpa", True), ("eager", True), ("of the user's own", False), (None, False)):
            decoder = Recording()
            lending = Lending(decoder, attention)
            arguments = {name: cache, "use_cache": True}
            lending.forwards[decoder](ids, **arguments)
            assert lending.lends is (lent and reads)
            assert decoder.calls == [((ids,), arguments)]
            lending.forwards[decoder](ids, None, None, cache)
            assert not lending.lends


@pytest.mark.parametrize("name", LADDER)
def test_the_model_is_untouched_between_and_after_calls(llama: Any, install: Install, attention: str, name: str) -> None:
    ids = prompt(llama.device, 12)
    keys = list(llama.state_dict())
    variables = {module: set(vars(module)) for module in llama.modules()}
    with torch.no_grad(), pinned(attention):
        before = llama(ids[:, :1]).logits
    session = install(name)
    for _ in range(2):
        ask(llama.generate, ids, 4)
        assert not attached(llama)
        with torch.no_grad(), pinned(attention):
            assert_same_bits(llama(ids[:, :1]).logits, before)
    session.close()
    assert list(llama.state_dict()) == keys
    for module, names in variables.items():
        assert set(vars(module)) == names
