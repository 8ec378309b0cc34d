"""What a call returns is the caller's own, and the model is the user's own between calls."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from runtime_models import prompt
from runtime_outputs import ask, assert_same, assert_same_bits, assert_same_cache, attached, refusal_of, steps_of
from sessions import open_session
from transformers import LogitsProcessorList

from exactgraph.candidates.base import Context
from exactgraph.candidates.registry import candidate
from exactgraph.capture import capturer_for
from exactgraph.models.cache import cache_name, cache_of
from exactgraph.runtime.attention import pinned
from exactgraph.runtime.session import Session

Install = Callable[..., Session]
SERVED = ["step", "C022"]


@pytest.mark.parametrize("name", SERVED)
def test_a_later_call_overwrites_nothing_that_was_returned(llama: Any, install: Install, name: str) -> None:
    with install(name):
        first = ask(llama.generate, prompt(llama.device, 12, 1))
        kept = copy.deepcopy(first)
        ask(llama.generate, prompt(llama.device, 12, 2))
        ask(llama.generate, prompt(llama.device, 9, 3), 40)
        assert_same(first, kept)
        assert_same_cache(cache_of(first), cache_of(kept))


@pytest.mark.parametrize("name", SERVED)
def test_returned_tensors_share_no_memory(llama: Any, install: Install, name: str) -> None:
    with install(name):
        output = ask(llama.generate, prompt(llama.device, 12), output_scores=False)
        addresses = {step.untyped_storage().data_ptr() for step in output.logits}
        assert len(addresses) == len(output.logits)


@pytest.mark.parametrize("name", SERVED)
@pytest.mark.parametrize("budget", [512, 8])
def test_the_returned_cache_is_eagers_and_goes_on(
    llama: Any, install: Install, attention: str, name: str, budget: int
) -> None:
    ids = prompt(llama.device, 12)
    with install(name, budget=budget) as session:
        got, expected = ask(llama.generate, ids), ask(session.eager, ids)
        assert_same_cache(cache_of(got), cache_of(expected))
        assert cache_of(got).get_seq_length() == 12 + 24 - 1
        # One step by hand, then more tokens on top of the cache.
        token = got.sequences[:, -1:]
        for output in (got, expected):
            with torch.no_grad(), pinned(attention):
                output.by_hand = llama(input_ids=token, **{cache_name(llama): copy.deepcopy(cache_of(output))}).logits
        assert_same_bits(got.by_hand, expected.by_hand)
        second = ask(llama.generate, got.sequences, **{cache_name(llama): cache_of(got)})
        if name == "step":
            assert steps_of(session)[0] > 0
        assert_same(second, ask(session.eager, expected.sequences, **{cache_name(llama): cache_of(expected)}))


def test_whatever_lies_beyond_the_live_slots_changes_nothing(llama: Any, install: Install) -> None:
    ids = prompt(llama.device, 12)
    with install("step") as session:
        expected = ask(session.eager, ids)
        stepper: Any = session._installation.stepper
        for poison in (float("nan"), 1e4, float("-inf")):

            def spoil(input_ids: torch.Tensor, scores: torch.Tensor, poison: float = poison) -> torch.Tensor:
                # The next step writes the slot of the last of these tokens, then reads up to it.
                for lane in stepper:
                    for bucket in lane.cache._buckets.values():
                        for buffer in (*bucket.keys, *bucket.values):
                            buffer[:, :, input_ids.shape[1] :] = poison
                return scores

            got = ask(llama.generate, ids, logits_processor=LogitsProcessorList([spoil]))
            assert steps_of(session) == (23, 0)
            assert_same(got, expected)


def test_a_short_prompt_after_a_long_one_sees_nothing_of_it(llama: Any, install: Install) -> None:
    with install("step") as session:
        ask(llama.generate, prompt(llama.device, 100, 1), 40)
        ids = prompt(llama.device, 5, 2)
        assert_same(ask(llama.generate, ids, 60), ask(session.eager, ids, 60))


def test_graphs_and_memory_level_off(llama: Any, attention: str) -> None:
    ids = prompt(llama.device, 12)
    context = Context(capturer_for(llama.device), budget=512, validated_length=64, confirmed_length=256)
    step = candidate("step")
    graphs, reserved = [], []
    with open_session(llama, step, context, attention) as session:
        planned = context.capturer.graphs
        for _ in range(4):
            ask(llama.generate, ids, 51)
            assert steps_of(session) == (50, 0)
            graphs.append(context.capturer.graphs - planned)
            if llama.device.type == "cuda":
                torch.cuda.synchronize()
                reserved.append(torch.cuda.memory_reserved())
    # One that serves all lengths, and one that chooses.
    assert graphs == [2] * 4
    assert len(set(reserved[1:])) <= 1, reserved


class Nested:
    """A streamer that generates while it streams."""

    def __init__(self, session: Session, ids: torch.Tensor) -> None:
        self.session, self.ids = session, ids
        self.results: list[Any] = []
        self.reasons: list[str] = []
        self._inside = False

    def put(self, value: torch.Tensor) -> None:
        assert not self._inside
        self._inside = True
        if value.numel() == 1:
            self.results.append(ask(self.session.model.generate, self.ids, 6))
            self.reasons.append(refusal_of(self.session))
        self._inside = False

    def end(self) -> None:
        pass


@pytest.mark.parametrize("name", ["step", "C022", "wrong-ulp"])
def test_a_call_inside_a_call_runs_eager(llama: Any, install: Install, name: str) -> None:
    outer, inner = prompt(llama.device, 12, 1), prompt(llama.device, 7, 2)
    with install(name) as session:
        alone = ask(llama.generate, outer, 8)
        nested = Nested(session, inner)
        got = ask(llama.generate, outer, 8, streamer=nested)
        assert_same(got, alone)
        assert session.last is not None
        assert session.last.refusal is None
        assert nested.reasons == ["nested"] * 8
        expected = ask(session.eager, inner, 6)
        for result in nested.results:
            assert_same(result, expected)


@pytest.mark.parametrize("name", SERVED)
def test_two_threads_at_once_are_both_exact(llama: Any, install: Install, name: str) -> None:
    prompts = [prompt(llama.device, tokens, tokens) for tokens in (9, 14)]
    answers: dict[int, list[Any]] = {0: [], 1: []}
    with install(name) as session:
        expected = [ask(session.eager, ids) for ids in prompts]
        together = threading.Barrier(2)

        def work(index: int) -> None:
            for _ in range(4):
                together.wait(timeout=60)
                answers[index].append(ask(llama.generate, prompts[index]))

        threads = [threading.Thread(target=work, args=(index,)) for index in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for index in (0, 1):
        assert len(answers[index]) == 4
        for answer in answers[index]:
            assert_same(answer, expected[index])
    assert not attached(llama)


class Broken(Exception):
    pass


@pytest.mark.parametrize("name", SERVED)
@pytest.mark.parametrize("at", [12, 15])
def test_an_error_inside_a_call_leaves_the_model_usable(llama: Any, install: Install, name: str, at: int) -> None:
    ids = prompt(llama.device, 12)

    def breaks(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if input_ids.shape[1] == at:
            raise Broken
        return scores

    with install(name) as session:
        with pytest.raises(Broken):
            ask(llama.generate, ids, logits_processor=LogitsProcessorList([breaks]))
        assert not attached(llama)
        got = ask(llama.generate, ids)
        assert session.last is not None
        assert session.last.refusal is None
        assert_same(got, ask(session.eager, ids))


def test_the_model_is_untouched_outside_calls(llama: Any, install: Install, attention: str) -> None:
    ids = prompt(llama.device, 12)
    keys = list(llama.state_dict())
    with torch.no_grad(), pinned(attention):
        before = llama(ids).logits
    during: list[list[str]] = []

    def look(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        during.append(attached(llama))
        return scores

    with install("C022"):
        assert not attached(llama)
        ask(llama.generate, ids, 4, logits_processor=LogitsProcessorList([look]))
        assert during == [[f"model.layers.{layer}.mlp" for layer in range(3)]] * 4
        assert not attached(llama)
        with torch.no_grad(), pinned(attention):
            assert_same_bits(llama(ids).logits, before)
        assert list(llama.state_dict()) == keys


@pytest.mark.parametrize("name", SERVED)
def test_close_gives_the_model_back(llama: Any, install: Install, attention: str, name: str) -> None:
    ids = prompt(llama.device, 12)
    with pinned(attention):
        expected = ask(llama.generate, ids)
    session = install(name)
    assert llama.generate == session.generate
    ask(llama.generate, ids)
    session.close()
    assert "generate" not in vars(llama)
    assert not attached(llama)
    assert llama.generate.__func__ is type(llama).generate
    last = session.last
    with pinned(attention):
        assert_same(ask(llama.generate, ids), expected)
    assert session.last is last, "the closed session served a call"


def test_an_error_in_the_block_gives_the_model_back(llama: Any, install: Install) -> None:
    def block() -> None:
        with install("step"):
            raise Broken

    with pytest.raises(Broken):
        block()
    assert "generate" not in vars(llama)
