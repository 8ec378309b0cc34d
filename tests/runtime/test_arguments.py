"""Arguments of ``generate`` that the loop serves mean what they mean in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from runtime_models import make_llama, prompt
from runtime_outputs import ask, assert_same, steps_of
from sessions import open_session
from transformers import LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList

from exactgraph.candidates.base import Context
from exactgraph.candidates.registry import candidate
from exactgraph.capture import capturer_for
from exactgraph.runtime.session import Session

Install = Callable[..., Session]
SERVED = ["step", "C022"]


class Recorder:
    """A streamer that keeps what it is given."""

    def __init__(self) -> None:
        self.pieces: list[tuple[tuple[int, ...], list[int]]] = []
        self.ended = 0

    def put(self, value: torch.Tensor) -> None:
        assert value.device.type == "cpu"
        assert not self.ended
        self.pieces.append((tuple(value.shape), value.flatten().tolist()))

    def end(self) -> None:
        self.ended += 1


class Biased(LogitsProcessor):
    """Makes one token likelier each step, and keeps the lengths that it was called with."""

    def __init__(self) -> None:
        self.lengths: list[int] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.lengths.append(input_ids.shape[1])
        scores = scores.clone()
        scores[:, (7 * input_ids[0, -1]) % 512] += 5
        return scores


class InPlace(LogitsProcessor):
    """Forbids the likeliest token by writing into the scores that it is given."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores.scatter_(1, scores.argmax(-1, keepdim=True), -1e4)


class AfterTokens(StoppingCriteria):
    def __init__(self, length: int) -> None:
        self.length, self.scores_seen = length, 0

    def __call__(self, input_ids: torch.Tensor, scores: Any, **arguments: Any) -> torch.Tensor:
        self.scores_seen = len(scores)
        return torch.full((1,), input_ids.shape[1] >= self.length, dtype=torch.bool, device=input_ids.device)


@pytest.mark.parametrize("name", SERVED)
@pytest.mark.parametrize("tokens", [1, 9])
def test_a_streamer_gets_the_same_pieces(llama: Any, install: Install, name: str, tokens: int) -> None:
    ids = prompt(llama.device, 12)
    got, expected = Recorder(), Recorder()
    with install(name) as session:
        ask(llama.generate, ids, tokens, streamer=got)
        ask(session.eager, ids, tokens, streamer=expected)
        assert got.pieces == expected.pieces
        assert len(got.pieces) == tokens + 1
        assert (got.ended, expected.ended) == (1, 1)


def test_a_streamer_of_a_refused_call_gets_the_prompt_once(llama: Any, install: Install) -> None:
    ids = prompt(llama.device, 12)
    mask = torch.ones_like(ids)
    mask[:, 0] = 0
    got, expected = Recorder(), Recorder()
    with install("step") as session:
        ask(llama.generate, ids, 5, streamer=got, attention_mask=mask)
        ask(session.eager, ids, 5, streamer=expected, attention_mask=mask)
    assert got.pieces == expected.pieces


def test_a_streamer_by_position(llama: Any, install: Install) -> None:
    ids = prompt(llama.device, 12)
    got, expected = Recorder(), Recorder()
    with install("step") as session:
        for generate, streamer in ((llama.generate, got), (session.eager, expected)):
            generate(ids, None, None, None, None, None, None, streamer, max_new_tokens=5, do_sample=False)
    assert got.pieces == expected.pieces


@pytest.mark.parametrize("name", SERVED)
def test_stopping_criteria_stop_at_the_same_token(llama: Any, install: Install, name: str) -> None:
    ids = prompt(llama.device, 12)
    with install(name) as session:
        ours, theirs = AfterTokens(20), AfterTokens(20)
        got = ask(llama.generate, ids, stopping_criteria=StoppingCriteriaList([ours]))
        assert_same(got, ask(session.eager, ids, stopping_criteria=StoppingCriteriaList([theirs])))
        assert got.sequences.shape[1] == 20
        assert ours.scores_seen == theirs.scores_seen == 8


@pytest.mark.parametrize("name", SERVED)
@pytest.mark.parametrize("processor", [Biased, InPlace])
def test_a_logits_processor_of_the_users_own(
    llama: Any, install: Install, name: str, processor: type[LogitsProcessor]
) -> None:
    ids = prompt(llama.device, 12)
    with install(name) as session:
        ours, theirs = processor(), processor()
        got = ask(llama.generate, ids, logits_processor=LogitsProcessorList([ours]))
        assert_same(got, ask(session.eager, ids, logits_processor=LogitsProcessorList([theirs])))
        assert not torch.equal(got.sequences, ask(session.eager, ids).sequences), "the processor must matter"
        if isinstance(ours, Biased) and isinstance(theirs, Biased):
            assert ours.lengths == theirs.lengths == list(range(12, 36))


@pytest.mark.parametrize("name", SERVED)
@pytest.mark.parametrize(
    "arguments",
    [
        {"repetition_penalty": 1.7},
        {"no_repeat_ngram_size": 1},
        {"guidance_scale": 1.8},
        {"suppress_tokens": list(range(2, 400))},
        {"prefix_allowed_tokens_fn": lambda batch, ids: [int(ids[-1]) // 2 + 3, 17, 200]},
        {"do_sample": True, "temperature": 0.7, "min_p": 0.02},
        {"do_sample": True, "top_k": 5, "renormalize_logits": True},
    ],
    ids=lambda arguments: "+".join(arguments),
)
def test_processors_of_the_generation_config(llama: Any, install: Install, name: str, arguments: dict[str, Any]) -> None:
    ids = prompt(llama.device, 12)
    with install(name) as session:
        torch.manual_seed(11)
        got = ask(llama.generate, ids, **arguments)
        if name == "step":
            assert steps_of(session) == (23, 0)
        torch.manual_seed(11)
        assert_same(got, ask(session.eager, ids, **arguments))
        assert not torch.equal(got.sequences, ask(session.eager, ids).sequences), "the argument must matter"


@pytest.mark.parametrize("name", SERVED)
@pytest.mark.parametrize("where", ["argument", "generation config"])
def test_an_answer_ends_at_its_end_of_text_token(llama: Any, install: Install, name: str, where: str) -> None:
    ids = prompt(llama.device, 12)
    with install(name) as session:
        free = ask(session.eager, ids).sequences[0, 12:].tolist()
        end = next(token for token in free[5:] if free.index(token) >= 5)
        arguments: dict[str, Any] = {"eos_token_id": [end, 511]} if where == "argument" else {}
        if where == "generation config":
            llama.generation_config.eos_token_id = end
        got = ask(llama.generate, ids, **arguments)
        assert_same(got, ask(session.eager, ids, **arguments))
        assert got.sequences[0, 12:].tolist() == free[: free.index(end) + 1]
        # Not allowed to end there, it goes on, and the processor's scores are eager's too.
        arguments["min_new_tokens"] = free.index(end) + 3
        got = ask(llama.generate, ids, **arguments)
        assert_same(got, ask(session.eager, ids, **arguments))
        assert got.sequences.shape[1] >= 12 + free.index(end) + 3


@pytest.mark.parametrize("name", SERVED)
def test_one_new_token(llama: Any, install: Install, name: str) -> None:
    ids = prompt(llama.device, 12)
    with install(name) as session:
        got = ask(llama.generate, ids, 1)
        assert_same(got, ask(session.eager, ids, 1))
        assert got.sequences.shape[1] == 13
        if name == "step":
            ask(llama.generate, ids, 1)
            assert steps_of(session) == (0, 0)


def test_a_prompt_of_one_token(llama: Any, install: Install) -> None:
    ids = prompt(llama.device, 1)
    with install("step") as session:
        assert_same(ask(llama.generate, ids), ask(session.eager, ids))


def test_a_call_that_returns_no_dict_has_the_same_tokens(llama: Any, install: Install) -> None:
    ids = prompt(llama.device, 12)
    with install("step") as session:
        got = llama.generate(ids, max_new_tokens=24, do_sample=False)
        assert isinstance(got, torch.Tensor)
        assert torch.equal(got, session.eager(ids, max_new_tokens=24, do_sample=False))


@pytest.mark.parametrize("name", SERVED)
@pytest.mark.parametrize("where", ["installation", "first call"])
def test_inference_mode_before_an_ordinary_call(llama: Any, install: Install, name: str, where: str) -> None:
    ids = prompt(llama.device, 12)
    with torch.inference_mode():
        session = install(name) if where == "installation" else None
    session = session or install(name)
    with session:
        with torch.inference_mode():
            assert_same(ask(llama.generate, ids), ask(session.eager, ids))
        assert_same(ask(llama.generate, ids), ask(session.eager, ids))
        with torch.inference_mode():
            assert_same(ask(llama.generate, ids), ask(session.eager, ids))


@pytest.mark.parametrize("offset", [0, 7])
def test_position_ids_of_the_users_own(llama: Any, install: Install, offset: int) -> None:
    ids = prompt(llama.device, 12)
    positions = torch.arange(offset, offset + 12, device=llama.device)[None]
    with install("step") as session:
        expected = ask(session.eager, ids, position_ids=positions)
        assert_same(ask(llama.generate, ids, position_ids=positions), expected)


@pytest.mark.gpu
def test_a_pin_takes_no_call_away_that_eager_serves() -> None:
    llama = make_llama(torch.device("cuda", 0))
    ids = torch.cat([prompt(llama.device, 12, seed) for seed in (1, 2)])
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    context = Context(capturer_for(llama.device), budget=64, validated_length=64, confirmed_length=64)
    step = candidate("step")
    llama.generate(ids, attention_mask=mask, max_new_tokens=4, do_sample=False)
    with open_session(llama, step, context, "flash"):
        llama.generate(ids, attention_mask=mask, max_new_tokens=4, do_sample=False)
