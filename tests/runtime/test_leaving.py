"""The model is looked at while a step runs already: what that step made of a changed model is thrown away, and never begun
where it could do harm.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from weakref import ref

import encdec_models
import pytest
import torch
from encdec_models import question
from runtime_models import make_llama, prompt
from runtime_outputs import EVERYTHING, ask, assert_same, assert_same_cache, refusal_of, steps_of
from sessions import open_session
from test_optimize_guard import Watching
from test_user_code import _forward, _hook, _move, _replace, arguments_with
from tests.fuzz.recorded import RecordedCapturer
from transformers import GenerationMixin, LogitsProcessorList

import exactgraph
from exactgraph.candidates.base import Context
from exactgraph.candidates.encdec_stepper import EncDecStepper
from exactgraph.candidates.lane import Lane
from exactgraph.capture import capturer_for
from exactgraph.models.cache import cache_of
from exactgraph.refusal import Refused
from exactgraph.runtime.attention import preferred
from exactgraph.runtime.guard import Guard, Held
from exactgraph.runtime.handle import Handle, Plan
from exactgraph.runtime.leaving import Stay
from exactgraph.runtime.rules import Rules
from exactgraph.runtime.session import Session
from exactgraph.runtime.stand_in import StandIns

AT = 16
PLACES = ("processor", "criterion", "streamer", "prefix function")


def opened(model: Any, attention: str, name: str = "step", batches: tuple[int, ...] = (1,), budget: int = 512) -> Session:
    capturer = capturer_for(model.device) if model.device.type == "cuda" else RecordedCapturer()
    return open_session(model, name, Context(capturer, budget, 64, 256, batches), attention)


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths before the steps that were begun without a look at the model."""
    lengths: list[int] = []
    for kind in (Lane, EncDecStepper):

        def run(self: Any, own: Callable[..., Any] = kind.run) -> Any:
            if self.replays():
                lengths.append(self._length)
            return own(self)

        monkeypatch.setattr(kind, "run", run)
    return lengths


def _assigned(model: Any) -> None:
    model.load_state_dict({key: value * 1.5 for key, value in model.state_dict().items()}, assign=True)


def _epsilon(model: Any) -> None:
    model.model.norm.variance_epsilon = 0.1


def _training(model: Any) -> None:
    model.model.layers[1].self_attn.attention_dropout = 0.5
    model.train()


def _deleted(model: Any) -> None:
    mlp = model.model.layers[1].mlp
    del mlp.down_proj.weight
    mlp.down_proj = torch.nn.Identity()
    mlp.forward = lambda hidden: hidden * 1.5


#: And whether a tensor has been given other memory, so that no step may be begun.
CHANGES = [(_replace, False), (_move, True), (_hook, False), (_forward, False), (_assigned, False), (_epsilon, False)]


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize(("change", "moves"), [*CHANGES, (_deleted, False)])
def test_a_step_of_a_changed_model_is_thrown_away(
    llama: Any, attention: str, begun: list[int], where: str, change: Callable[[Any], None], moves: bool
) -> None:
    ids = prompt(llama.device, 12)
    other = make_llama(llama.device)
    with opened(llama, attention) as session:
        before = ask(llama.generate, ids)
        steps = session.steps.captured
        begun.clear()
        got = ask(llama.generate, ids, **arguments_with(lambda: change(llama), where))
        refusal_of(session)
        captured = session.steps.captured - steps
        assert begun == list(range(12, 12 + captured + (not moves)))
        with preferred(attention):
            expected = ask(other.generate, ids, **arguments_with(lambda: change(other), where))
        assert_same(got, expected)
        assert_same_cache(got.past_key_values, expected.past_key_values)
    assert not torch.equal(got.logits[-1], before.logits[-1]), "the change must matter, or nothing was tested"


@pytest.mark.parametrize("change", [_hook, _training, _move])
def test_sampling_draws_as_often_as_eager(llama: Any, attention: str, begun: list[int], change: Callable[[Any], None]) -> None:
    ids, other = prompt(llama.device, 12), make_llama(llama.device)

    def sampled(model: Any, act: Callable[[Any], None]) -> tuple[Any, torch.Tensor]:
        torch.manual_seed(3)
        arguments = arguments_with(lambda: act(model), "processor")
        got = ask(model.generate, ids, do_sample=True, temperature=1.3, top_k=0, **arguments)
        return got, torch.cuda.get_rng_state() if llama.device.type == "cuda" else torch.get_rng_state()

    with opened(llama, attention) as session:
        ask(llama.generate, ids)
        got, state = sampled(llama, change)
        refusal_of(session)
        assert begun
        with preferred(attention):
            expected, wanted = sampled(other, change)
        assert_same(got, expected)
        assert torch.equal(state, wanted)


def test_several_sequences_are_given_back_as_they_were(llama: Any, attention: str, begun: list[int]) -> None:
    ids, other = torch.cat([prompt(llama.device, 12), prompt(llama.device, 12, seed=1)]), make_llama(llama.device)
    with opened(llama, attention, batches=(1, 2)) as session:
        ask(llama.generate, ids)
        got = ask(llama.generate, ids, **arguments_with(lambda: _hook(llama), "processor"))
        assert refusal_of(session) == "hooks"
        assert begun
        with preferred(attention):
            expected = ask(other.generate, ids, **arguments_with(lambda: _hook(other), "processor"))
        assert_same(got, expected)
        assert_same_cache(got.past_key_values, expected.past_key_values)


@pytest.mark.parametrize("where", PLACES)
def test_harmless_code_has_its_steps_begun_at_once(llama: Any, attention: str, begun: list[int], where: str) -> None:
    ids = prompt(llama.device, 12)
    with opened(llama, attention) as session:
        ask(llama.generate, ids)
        begun.clear()
        got = ask(llama.generate, ids, **arguments_with(lambda: None, where))
        assert begun == list(range(12, 35))
        assert steps_of(session) == (23, 0)
        assert_same(got, ask(session.eager, ids))


@pytest.mark.parametrize("where", PLACES)
def test_what_a_step_rests_on_is_asked_before_the_host_waits(
    llama: Any, attention: str, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    told: list[str] = []
    harmless, finished, run = Stay.harmless, Rules.finished, Lane.run

    class Told:
        def __init__(self, ended: torch.Tensor) -> None:
            self._ended = ended

        def __bool__(self) -> bool:
            told.append("wait")
            return bool(self._ended)

    monkeypatch.setattr(Stay, "harmless", lambda self: (told.append("ask"), harmless(self))[1])
    monkeypatch.setattr(Rules, "finished", lambda self, answer: Told(finished(self, answer)))
    monkeypatch.setattr(Lane, "run", lambda self: (told.append("run"), run(self))[1])
    with opened(llama, attention):
        ask(llama.generate, prompt(llama.device, 12))
        told.clear()
        ask(llama.generate, prompt(llama.device, 12), 6, **arguments_with(lambda: None, where))
    # A streamer is given the token itself, and may do anything then.
    between = ["ask", "wait", *["ask"] * (where == "streamer"), "run"]
    assert told[: 5 * len(between)] == between * 5


def test_nothing_is_captured_from_a_changed_model(llama: Any, attention: str) -> None:
    ids, other = prompt(llama.device, 12), make_llama(llama.device)
    with opened(llama, attention) as session:
        (lane,) = session._installation.stepper  # type: ignore[misc]
        lane.classes = []  # each length has a graph of its own, and all are new
        got = ask(llama.generate, ids, **arguments_with(lambda: _hook(llama), "processor"))
        assert refusal_of(session) == "hooks"
        assert max(first for first, _ in lane._graphs) == AT
        with preferred(attention):
            assert_same(got, ask(other.generate, ids, **arguments_with(lambda: _hook(other), "processor")))


def test_no_bucket_grows_under_a_changed_model(llama: Any, attention: str, begun: list[int]) -> None:
    ids, other = prompt(llama.device, 124), make_llama(llama.device)
    with opened(llama, attention) as session:
        ask(llama.generate, ids, 12)
        begun.clear()

        def arguments(model: Any) -> dict[str, Any]:
            def act(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
                if input_ids.shape[1] == 128:
                    _hook(model)
                return scores

            return {"logits_processor": LogitsProcessorList([act])}

        got = ask(llama.generate, ids, 12, **arguments(llama))
        assert refusal_of(session) == "hooks"
        assert begun == [124, 125, 126, 127]
        with preferred(attention):
            assert_same(got, ask(other.generate, ids, 12, **arguments(other)))


@pytest.mark.parametrize("change", ["autocast", "mode", "resized"])
def test_no_step_is_begun_where_it_could_do_harm(llama: Any, attention: str, begun: list[int], change: str) -> None:
    ids, other = prompt(llama.device, 12), make_llama(llama.device)
    leave: list[Any] = []

    def act(model: Any) -> None:
        if change == "resized":  # weights that are freed where they lie, and read again
            weight = model.model.layers[1].mlp.down_proj.weight.data
            kept, storage = weight.clone(), weight.untyped_storage()
            storage.resize_(0)
            if model.device.type == "cuda":
                torch.cuda.empty_cache()
            leave.append(torch.empty_like(kept))  # so that it comes to lie elsewhere
            storage.resize_(kept.numel() * kept.element_size())
            weight.copy_(kept * 1.5)
            return
        entered: Any = torch.autocast(model.device.type, dtype=torch.bfloat16) if change == "autocast" else Watching()
        entered.__enter__()
        leave.append(entered)

    def done() -> None:
        if change != "resized":
            leave.pop().__exit__(None, None, None)
        leave.clear()

    with opened(llama, attention) as session:
        ask(llama.generate, ids)
        begun.clear()
        got = ask(llama.generate, ids, **arguments_with(lambda: act(llama), "processor"))
        done()
        if change != "resized" or session.last.refusal is not None:  # type: ignore[union-attr]
            refusal_of(session)
            assert begun == [12, 13, 14, 15]
        with preferred(attention):
            expected = ask(other.generate, ids, **arguments_with(lambda: act(other), "processor"))
        done()
        assert_same(got, expected)


@pytest.mark.gpu
def test_another_stream_has_no_step_begun(llama: Any, attention: str, begun: list[int]) -> None:
    if llama.device.type != "cuda":
        pytest.skip("Streams are a GPU's.")
    ids, before = prompt(llama.device, 12), torch.cuda.current_stream()
    with opened(llama, attention) as session:
        ask(llama.generate, ids)
        begun.clear()

        def act() -> None:
            torch.cuda.synchronize()
            torch.cuda.set_stream(torch.cuda.Stream())

        got = ask(llama.generate, ids, **arguments_with(act, "processor"))
        torch.cuda.synchronize()
        torch.cuda.set_stream(before)
        assert refusal_of(session) == "stream"
        assert begun == [12, 13, 14, 15]
        assert_same(got, ask(session.eager, ids))


@pytest.mark.gpu
def test_weights_that_leave_the_gpu_inside_a_call_leave_no_memory_behind(llama: Any, attention: str) -> None:
    if llama.device.type != "cuda":
        pytest.skip("There is one memory only.")
    ids, other, device = prompt(llama.device, 12), make_llama(llama.device), llama.device

    def act(model: Any) -> None:
        before, weights = torch.cuda.memory_allocated(), sum(weight.nbytes for weight in model.parameters())
        model.to("cpu")
        assert torch.cuda.memory_allocated() <= before - weights
        torch.cuda.empty_cache()
        model.to(device)
        with torch.no_grad():
            model.model.layers[1].mlp.down_proj.weight.mul_(1.5)

    with opened(llama, attention) as session:
        ask(llama.generate, ids)
        got = ask(llama.generate, ids, **arguments_with(lambda: act(llama), "processor"))
        with preferred(attention):
            assert_same(got, ask(other.generate, ids, **arguments_with(lambda: act(other), "processor")))
        assert session.last is not None


@pytest.mark.parametrize("how", ["restored", "optimised", "closed", "asked"])
def test_the_installation_itself_inside_a_call(llama: Any, attention: str, begun: list[int], how: str) -> None:
    """It is not taken away under a running call, and a call inside the call runs eager."""
    ids, told = prompt(llama.device, 12), []
    with opened(llama, attention) as session:
        plan, capturer = Plan("step", "bit-identical", attention, {}), capturer_for(llama.device)
        llama.exactgraph = Handle(Path("receipt.json"), "llama", "rehearsal", plan, session, capturer, 0.0)
        ask(llama.generate, ids)

        def act() -> None:
            if how == "asked":
                told.append(ask(llama.generate, ids, 5))
                return
            with pytest.raises(Refused) as caught:
                {"restored": exactgraph.restore, "optimised": exactgraph.optimize, "closed": _close}[how](llama)
            told.append(caught.value.refusal.reason)

        begun.clear()
        got = ask(llama.generate, ids, **arguments_with(act, "streamer"))
        assert begun == list(range(12, 35))
        assert steps_of(session) == (23, 0)
        assert_same(got, ask(session.eager, ids))
        if how == "asked":
            assert_same(told[0], ask(session.eager, ids, 5))
        else:
            assert told == ["running"]


def _close(model: Any) -> None:
    model.exactgraph.session.close()


def test_a_hook_is_called_as_often_as_in_eager(llama: Any, install: Callable[..., Session], attention: str) -> None:
    """Under the package's emulation too, whose replays run the model's own Python."""
    ids, other = prompt(llama.device, 12), make_llama(llama.device)

    def counted(model: Any) -> int:
        calls: list[int] = []

        def count() -> None:
            model.model.norm.register_forward_hook(lambda module, inputs, output: calls.append(1))

        ask(model.generate, ids, **arguments_with(count, "processor"))
        return len(calls)

    with install("step") as session:
        ask(llama.generate, ids)
        got = counted(llama)
        assert refusal_of(session) == "hooks"
        with preferred(attention):
            assert got == counted(other) > 0


def test_an_error_of_the_users_leaves_nothing_of_the_call(llama: Any, attention: str) -> None:
    ids = prompt(llama.device, 12)

    def fail() -> None:
        _hook(llama)
        raise KeyError("mine")

    with opened(llama, attention) as session:
        before = ask(llama.generate, ids)
        with pytest.raises(KeyError, match="mine"):
            ask(llama.generate, ids, **arguments_with(fail, "criterion"))
        llama.model.layers[1].mlp._forward_hooks.clear()
        assert_same(ask(llama.generate, ids), before)
        assert steps_of(session) == (23, 0)


@pytest.mark.parametrize(
    ("family", "asked_each_time"), [("whisper", False), ("t5", False), ("marian", False), ("frames", False), ("frames", True)]
)
@pytest.mark.parametrize("change", ["hook", "move"])
def test_an_encoder_decoder_leaves_too(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, begun: list[int], family: str, asked_each_time: bool, change: str
) -> None:
    if asked_each_time:

        def own(self: Any, *args: Any, **kwargs: Any) -> Any:
            return GenerationMixin.prepare_inputs_for_generation(self, *args, **kwargs)

        monkeypatch.setattr(encdec_models.FramesModel, "prepare_inputs_for_generation", own)
    attention = "math" if device.type == "cuda" else "default"
    model, other = (encdec_models.make(family, device) for _ in range(2))
    inputs = question(model)

    def act(model: Any) -> None:
        head = getattr(model, {"whisper": "proj_out", "frames": "events"}.get(family, "lm_head"))
        if change == "hook":
            head.register_forward_hook(lambda module, inputs, output: output.roll(1, -1))
        else:
            head.weight.data = head.weight.data.roll(1, 0)

    def asked(generate: Any, act: Callable[[], None]) -> Any:
        def at(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            if input_ids.shape[1] == 9:
                act()
            return scores

        processors = LogitsProcessorList([at])
        return generate(**inputs, max_new_tokens=20, do_sample=False, logits_processor=processors, **EVERYTHING)

    with opened(model, attention, "encdec-step") as session:
        before = asked(model.generate, lambda: None)
        begun.clear()
        got = asked(model.generate, lambda: act(model))
        assert refusal_of(session) == ("hooks" if change == "hook" else "model-changed")
        # The first step of a call puts its input in place, with a look before. A model that is asked does so each time.
        assert begun == ([] if asked_each_time else list(range(2, 10 if change == "hook" else 9)))
        with preferred(attention):
            expected = asked(other.generate, lambda: act(other))
        assert_same(got, expected)
        for part in ("self_attention_cache", "cross_attention_cache"):
            assert_same_cache(getattr(cache_of(got), part), getattr(cache_of(expected), part))
    assert not torch.equal(got.sequences, before.sequences)


def test_memory_is_kept_while_graphs_may_read_it_and_no_longer(llama: Any, install: Callable[..., Session]) -> None:
    """Under the package's emulation, whose graphs keep no tensors by themselves."""
    ids, seen = prompt(llama.device, 12), []
    down = llama.model.layers[1].mlp.down_proj

    def old() -> ref[Any]:
        gone = ref(down.weight)
        down.weight = torch.nn.Parameter(down.weight.detach() * 1.5)
        return gone

    def look(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if input_ids.shape[1] == AT:
            seen.append(old())
            assert seen[0]() is not None, "a step that is begun now reads it"
        elif seen:
            assert seen[0]() is None, "the call runs eager now, and its memory is to be what it would be"
        return scores

    with install("step") as session:
        ask(llama.generate, ids, logits_processor=LogitsProcessorList([look]))
        assert refusal_of(session) == "model-changed"
        assert seen[0]() is None


def test_memory_is_given_back_after_a_call_that_ended_before_the_next_step(
    llama: Any, install: Callable[..., Session]
) -> None:
    ids, down, seen = prompt(llama.device, 12), llama.model.layers[1].mlp.down_proj, []

    def last() -> None:
        seen.append(ref(down.weight))
        down.weight = torch.nn.Parameter(down.weight.detach() * 1.5)

    with install("step"):
        ask(llama.generate, ids, AT - 12 + 1, **arguments_with(last, "processor"))
        assert seen[0]() is None


def _written(weight: torch.Tensor) -> None:
    weight.data.mul_(2)


def _set(weight: torch.Tensor) -> None:
    weight.data = weight.data.clone()


def _resized(weight: torch.Tensor) -> None:
    weight.untyped_storage().resize_(0)


@pytest.mark.parametrize(("act", "there"), [(_written, True), (_set, False), (_resized, False)])
def test_what_is_held(device: torch.device, act: Callable[[torch.Tensor], None], there: bool) -> None:
    weight = torch.nn.Parameter(torch.ones(8, 8, device=device))
    held = Held([weight, torch.zeros(3, device=device)])
    assert held.there()
    act(weight)
    assert held.there() is there


def test_tensors_of_every_kind_are_held(llama: Any) -> None:
    shift, scales = torch.zeros(3, device=llama.device), {"a": [torch.ones(2, device=llama.device)]}
    llama.model.layers[0].mlp.shift, llama.model.layers[1].mlp.scales = shift, scales
    found = Guard(llama, {})._snapshot.tensors()
    expected = [*llama.parameters(), *llama.buffers(), shift, *scales["a"]]
    assert {*map(id, expected)} <= {*map(id, found)}


def test_a_closed_session_is_left() -> None:
    guard: Guard | None = Guard(make_llama(torch.device("cpu")), {})
    stay = Stay(lambda: guard, StandIns({}))
    assert not stay.harmless(), "nothing is held"
    stay.hold()
    assert stay.harmless()
    assert stay()
    guard = None
    assert not stay.harmless()
    assert not stay()
    assert stay.left is not None
    assert stay.left.reason == "closed"
