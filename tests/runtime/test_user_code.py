"""What a user's own code does to the model in the middle of a call is noticed before the next step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from runtime_models import make_llama, prompt
from runtime_outputs import ask, assert_same, attached, refusal_of
from transformers import LogitsProcessorList, StoppingCriteriaList, TextStreamer
from transformers.generation import (
    MaxLengthCriteria,
    PrefixConstrainedLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
)

from exactgraph.runtime.attention import preferred
from exactgraph.runtime.guard import Guard
from exactgraph.runtime.session import Session
from exactgraph.runtime.stand_in import StandIn
from exactgraph.runtime.user_code import runs_user_code

Install = Callable[..., Session]
_AT = 16


def _replace(model: Any) -> None:
    down = model.model.layers[1].mlp.down_proj
    down.weight = torch.nn.Parameter(down.weight.detach() * 1.5)


def _move(model: Any) -> None:
    model.model.layers[1].mlp.down_proj.weight.data = model.model.layers[1].mlp.down_proj.weight.data * 1.5


def _hook(model: Any) -> None:
    model.model.layers[1].mlp.register_forward_hook(lambda module, inputs, output: output * 1.5)


def _forward(model: Any) -> None:
    mlp = model.model.layers[1].mlp
    mlp.forward = lambda hidden: type(mlp).forward(mlp, hidden) * 1.5


class Processor:
    def __init__(self, act: Callable[[], None]) -> None:
        self.act = act

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if input_ids.shape[1] == _AT:
            self.act()
        return scores


class Criterion(Processor):
    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> Any:
        super().__call__(input_ids, scores)
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)


class Streamer:
    def __init__(self, act: Callable[[], None]) -> None:
        self.act, self.put_times = act, 0

    def put(self, value: torch.Tensor) -> None:
        self.put_times += 1
        if self.put_times == 5:
            self.act()

    def end(self) -> None:
        self.put_times = -1


def _allowed(act: Callable[[], None]) -> Callable[[int, torch.Tensor], list[int]]:
    def allowed(batch: int, input_ids: torch.Tensor) -> list[int]:
        if len(input_ids) == _AT:
            act()
        return list(range(512))

    return allowed


def arguments_with(act: Callable[[], None], where: str) -> dict[str, Any]:
    if where == "processor":
        return {"logits_processor": LogitsProcessorList([Processor(act)])}
    if where == "criterion":
        return {"stopping_criteria": StoppingCriteriaList([Criterion(act)])}
    if where == "streamer":
        return {"streamer": Streamer(act)}
    return {"prefix_allowed_tokens_fn": _allowed(act)}


@pytest.mark.parametrize("name", ["step", "C022", "C025", "C026"])
@pytest.mark.parametrize("where", ["processor", "criterion", "streamer", "prefix function"])
@pytest.mark.parametrize("change", [_replace, _move, _hook, _forward])
def test_graphs_of_modules_are_left_at_the_next_step(
    llama: Any, install: Install, attention: str, name: str, where: str, change: Callable[[Any], None]
) -> None:
    ids = prompt(llama.device, 12)
    # The same model once more: what the code does to one is done to the other at the same step.
    other = make_llama(llama.device)
    with install(name) as session:
        before = ask(llama.generate, ids)
        got = ask(llama.generate, ids, **arguments_with(lambda: change(llama), where))
        assert refusal_of(session) == ("hooks" if change in (_hook, _forward) else "model-changed")
        assert attached(llama) == (["model.layers.1.mlp"] if change is _forward else [])
        with preferred(attention):
            assert_same(got, ask(other.generate, ids, **arguments_with(lambda: change(other), where)))
    assert not torch.equal(got.logits[-1], before.logits[-1]), "the change must matter, or nothing was tested"


@pytest.mark.parametrize("where", ["processor", "criterion", "streamer", "prefix function"])
def test_harmless_code_keeps_its_graphs(llama: Any, install: Install, where: str) -> None:
    ids, times = prompt(llama.device, 12), []
    with install("C022") as session:
        arguments = arguments_with(lambda: times.append(1), where)
        got = ask(llama.generate, ids, **arguments)
        assert session.last is not None
        assert session.last.refusal is None
        assert times == [1]
        if where == "streamer":
            assert arguments["streamer"].put_times == -1, "its end was not called"
        assert_same(got, ask(session.eager, ids))


def test_the_guard_knows_the_forwards_that_stand_in(llama: Any) -> None:
    mlp, norm = llama.model.layers[1].mlp, llama.model.norm
    stand_in = StandIn(mlp, mlp.forward, lambda: None)
    guard = Guard(llama, {mlp: stand_in})
    mlp.forward = stand_in
    assert guard.refusal() is None
    mlp.forward = StandIn(mlp, type(mlp).forward, lambda: None)
    refusal = guard.refusal()
    assert refusal is not None
    assert refusal.reason == "hooks"
    del mlp.forward
    norm.forward = stand_in
    refusal = guard.refusal()
    assert refusal is not None
    assert refusal.sentence.startswith("Module model.norm has")


class Tuned(TopKLogitsWarper):
    """A user's, built on one of transformers'."""


class Printer(TextStreamer):
    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        pass


def _patched() -> TextStreamer:
    streamer = TextStreamer(None)  # type: ignore[arg-type]
    streamer.on_finalized_text = lambda text, stream_end=False: None  # type: ignore[method-assign]
    return streamer


@pytest.mark.parametrize(
    ("part", "is_users"),
    [
        (None, False),
        (LogitsProcessorList([TemperatureLogitsWarper(0.5), TopKLogitsWarper(5)]), False),
        (StoppingCriteriaList([MaxLengthCriteria(9)]), False),
        ([], False),
        (TextStreamer(None), False),  # type: ignore[arg-type]
        (LogitsProcessorList([TopKLogitsWarper(5), Tuned(5)]), True),
        (LogitsProcessorList([PrefixConstrainedLogitsProcessor(lambda batch, ids: [1], 1)]), True),
        ([lambda ids, scores: scores], True),
        (Printer(None), True),  # type: ignore[arg-type]
        (_patched(), True),
        (lambda batch, ids: [1], True),
    ],
)
def test_whose_code_it_is(part: Any, is_users: bool) -> None:
    assert runs_user_code(part) is is_users
    assert runs_user_code(None, part) is is_users
