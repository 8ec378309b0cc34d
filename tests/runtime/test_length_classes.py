"""One graph for many lengths: classes, buckets, batches, and decoding that the host does not wait for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from decoder_models import make
from runtime_models import make_llama, prompt
from runtime_outputs import ask, assert_same, assert_same_bits, assert_same_cache, steps_of
from sessions import open_session, planned
from transformers import DynamicCache, LogitsProcessorList, StoppingCriteriaList

from exactgraph.candidates import lane as lane_room
from exactgraph.candidates.base import Context
from exactgraph.candidates.length_classes import find_classes
from exactgraph.candidates.registry import candidate
from exactgraph.capture import capturer_for
from exactgraph.models.cache import cache_name, cache_of
from exactgraph.models.device_length import Shape
from exactgraph.models.slots import SlotCache
from exactgraph.refusal import Refused
from exactgraph.runtime.attention import pinned
from exactgraph.runtime.handle import Handle, Plan
from exactgraph.runtime.session import Session

Install = Callable[..., Session]
HEADS = {"shared": 2, "one each": 4, "one for all": 1}


def opened(model: Any, attention: str, *, batches: tuple[int, ...] = (1,), budget: int = 64, confirmed: int = 48) -> Session:
    context = Context(capturer_for(model.device), budget, 24, confirmed, batches)
    return open_session(model, "step", context, attention)


@pytest.mark.parametrize("kv_heads", HEADS.values(), ids=HEADS)
def test_a_graph_serves_a_class_of_lengths(device: torch.device, attention: str, kv_heads: int) -> None:
    model = make_llama(device, num_key_value_heads=kv_heads)
    with opened(model, attention) as session:
        # Past 128 and 256, where classes and buckets end and eager's kernel splits its keys anew.
        ids = prompt(device, 100)
        expected, got = ask(session.eager, ids, 200), ask(model.generate, ids, 200)
        assert_same(got, expected)
        assert_same_cache(cache_of(got), cache_of(expected))
        assert steps_of(session) == (199, 0)
        (lane,) = session._installation.stepper  # type: ignore[union-attr, misc]
        assert list(lane._graphs) == [(1, 128), (129, 256), (257, 512)]
        assert [bucket.capacity for bucket in lane.cache._buckets.values()] == [128, 256, 512]


@pytest.mark.gpu
@pytest.mark.parametrize(
    "shape",
    [
        Shape(1, 16, 2, 128, torch.bfloat16, None),
        Shape(1, 9, 3, 64, torch.float16, None),
        Shape(1, 12, 12, 64, torch.bfloat16, 0.2),
        Shape(4, 16, 2, 128, torch.bfloat16, None),
        Shape(2, 12, 12, 64, torch.bfloat16, None),
    ],
    ids=str,
)
def test_classes_cover_every_length_on_a_gpu(shape: Shape) -> None:
    with pinned("flash"):
        classes = find_classes([shape], 4096, torch.device("cuda", 0))
    assert [first for first, _ in classes] == [1, *(last + 1 for _, last in classes[:-1])]
    assert classes[-1][1] == 4096
    assert len(classes) <= (6 if shape.batch == 1 else 12)


@pytest.mark.gpu
def test_another_backend_has_no_classes() -> None:
    with pinned("math"):
        assert find_classes([Shape(1, 16, 2, 128, torch.bfloat16, None)], 1024, torch.device("cuda", 0)) == []


def test_a_plan_names_its_classes(device: torch.device, attention: str) -> None:
    model = make_llama(device)
    context = Context(capturer_for(device), 64, 24, 48, (1, 3))
    plan = planned(model, "step", context, attention)
    assert plan["reach"] == model.config.max_position_embeddings
    assert [lane["batch"] for lane in plan["lanes"]] == [1, 3]
    for lane in plan["lanes"]:
        assert lane["classes"] == [[1, 128], [129, 256], [257, 512], [513, 1024]]
        assert lane["why"] is None
        if device.type == "cuda":
            assert lane["kernels"]["first_difference"] is None
            assert lane["kernels"]["compared"] > 20
        else:
            assert lane["kernels"] is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"attn_implementation": "eager"}, "does not hand the keys of its cache"),
        ({"sliding_window": 8, "attn_implementation": "eager"}, "does not hand the keys of its cache"),
    ],
)
def test_other_attention_has_a_graph_for_each_length(device: torch.device, changes: dict[str, Any], words: str) -> None:
    model = make("mistral", device, **changes)
    plan = candidate("step").plan(model, Context(capturer_for(device), 64, 24, 48))
    assert plan["lanes"][0]["classes"] == []
    assert words in plan["lanes"][0]["why"]


@pytest.mark.gpu
def test_a_plan_made_under_another_backend_is_not_trusted() -> None:
    model = make_llama(torch.device("cuda", 0))
    context = Context(capturer_for(model.device), 64, 24, 48)
    plan = planned(model, "step", context, "flash")
    assert plan["lanes"][0]["classes"]
    with Session(model, candidate("step"), plan, context, "math") as session:
        ids = prompt(model.device, 10)
        assert_same(ask(model.generate, ids, 30), ask(session.eager, ids, 30))
        (lane,) = session._installation.stepper  # type: ignore[union-attr, misc]
        assert len(lane._graphs) == 29


def test_a_step_that_reads_beyond_its_length_has_no_classes(device: torch.device, attention: str) -> None:
    model = make_llama(device)
    inner = model.model.layers[1].self_attn
    own = inner.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        output, *rest = own(*args, **kwargs)
        cache = kwargs.get("cache", kwargs.get("past_key_values"))
        keys = cache.layers[1].keys
        if getattr(cache.layers[1], "longest", None):
            output = output + keys[:, :, : cache.layers[1].longest].sum() * 0
        return output, *rest

    inner.forward = forward
    plan = planned(model, "step", Context(capturer_for(device), 64, 24, 48), attention)
    assert plan["lanes"][0]["classes"] == []
    assert "differs where its length is read on the device" in plan["lanes"][0]["why"]


def test_beyond_its_reach_a_sequence_goes_on_in_eager(device: torch.device, attention: str) -> None:
    model = make_llama(device, max_position_embeddings=40)
    with opened(model, attention, confirmed=30) as session:
        for tokens in (10, 60):
            ids = prompt(device, tokens)
            expected, got = ask(session.eager, ids, 50), ask(model.generate, ids, 50)
            assert_same(got, expected)
            assert_same_cache(cache_of(got), cache_of(expected))
            captured = max(0, 40 - tokens)
            assert steps_of(session) == (captured, 49 - captured)
        assert session.steps.why == "Steps are captured up to 40 tokens, and this one is to 61."
        handle = Handle(Path(), "llama", "", Plan("step", "", "", {}), session, capturer_for(device), 0.0)
        assert handle.last == f"through step: 0 graph steps, 49 eager ({session.steps.why})"
        assert handle.counters["eager_steps_why"] == session.steps.why


def test_no_room_for_the_next_bucket(device: torch.device, attention: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_llama(device)
    with opened(model, attention) as session:
        ids = prompt(device, 100)
        expected = ask(session.eager, ids, 60)
        buffer = SlotCache._buffer

        def full(self: SlotCache, states: torch.Tensor, capacity: int) -> torch.Tensor:
            if capacity > 128:
                raise torch.cuda.OutOfMemoryError("no room")
            return buffer(self, states, capacity)

        with monkeypatch.context() as patch:
            patch.setattr(SlotCache, "_buffer", full)
            got = ask(model.generate, ids, 60)
            assert_same(got, expected)
            assert_same_cache(cache_of(got), cache_of(expected))
            assert steps_of(session) == (28, 31)
            assert "KV cache of 256 tokens" in str(session.steps.why)
            # One that would begin there runs eager from its first step.
            assert_same(ask(model.generate, prompt(device, 130), 8), ask(session.eager, prompt(device, 130), 8))
            assert steps_of(session) == (0, 7)
        assert_same(ask(model.generate, ids, 60), expected)
        assert steps_of(session) == (59, 0)


def batch_of(device: torch.device, batch: int, tokens: int) -> torch.Tensor:
    return torch.cat([prompt(device, tokens, seed) for seed in range(batch)])


@pytest.mark.parametrize("kv_heads", HEADS.values(), ids=HEADS)
def test_named_batches_have_graphs_and_others_run_eager(device: torch.device, attention: str, kv_heads: int) -> None:
    model = make_llama(device, num_key_value_heads=kv_heads)
    with opened(model, attention, batches=(1, 3)) as session:
        for batch in (3, 1, 3):
            ids = batch_of(device, batch, 110)
            expected, got = ask(session.eager, ids, 40), ask(model.generate, ids, 40)
            assert_same(got, expected)
            assert_same_cache(cache_of(got), cache_of(expected))
            assert steps_of(session) == (39, 0)
        ids = batch_of(device, 2, 10)
        assert_same(ask(model.generate, ids, 5), ask(session.eager, ids, 5))
        assert session.last is not None
        assert session.last.refusal is not None
        assert session.last.refusal.sentence == "Steps are captured for batches of 1, 3; this call has 2 sequences."


@pytest.mark.parametrize("do_sample", [False, True])
def test_sequences_of_a_batch_that_end_early_are_padded(device: torch.device, attention: str, do_sample: bool) -> None:
    model = make_llama(device)
    with opened(model, attention, batches=(3,)) as session:
        ids = batch_of(device, 3, 12)
        free = ask(session.eager, ids, 30).sequences[:, 12:]
        ends = [int(free[0, 5]), int(free[1, 9])]
        asked = {"eos_token_id": ends, "pad_token_id": 1, "do_sample": do_sample, "temperature": 0.3 if do_sample else None}
        torch.manual_seed(5)
        expected = ask(session.eager, ids, 30, **asked)
        torch.manual_seed(5)
        assert_same(ask(model.generate, ids, 30, **asked), expected)
        assert (expected.sequences == 1).any() or do_sample, "no sequence ended early"


@pytest.mark.parametrize("place", [0, 1, 2, 17, 28])
@pytest.mark.parametrize("wanted", [True, False])
def test_an_end_is_seen_one_step_late_and_nothing_of_it_is_left(
    device: torch.device, attention: str, place: int, wanted: bool
) -> None:
    model = make_llama(device)
    with opened(model, attention) as session:
        ids = prompt(device, 12)
        free = session.eager(ids, max_new_tokens=30, do_sample=False)[0, 12:].tolist()
        end = free[place]
        asked = {"eos_token_id": [end, 511], "pad_token_id": 1, "max_new_tokens": 30, "do_sample": False}
        if not wanted:
            assert_same_bits(model.generate(ids, **asked), session.eager(ids, **asked))
            return
        expected, got = ask(session.eager, ids, **asked), ask(model.generate, ids, **asked)
        assert got.sequences.shape[1] == 12 + free.index(end) + 1
        assert_same(got, expected)
        assert_same_cache(cache_of(got), cache_of(expected))
        assert steps_of(session) == (free.index(end), 0)


def test_an_end_in_the_last_captured_step(device: torch.device, attention: str) -> None:
    model = make_llama(device, max_position_embeddings=40)
    with opened(model, attention, confirmed=30) as session:
        ids = prompt(device, 12)
        free = session.eager(ids, max_new_tokens=40, do_sample=False)[0, 12:].tolist()
        for place in (26, 27, 28, 29, 30):
            asked = {"eos_token_id": free[place], "pad_token_id": 1}
            expected, got = ask(session.eager, ids, 40, **asked), ask(model.generate, ids, 40, **asked)
            assert_same(got, expected)
            assert_same_cache(cache_of(got), cache_of(expected))


def test_choosing_on_the_device_and_on_the_host_give_the_same(device: torch.device, attention: str) -> None:
    model = make_llama(device)
    with opened(model, attention) as session:
        ids = prompt(device, 12)
        expected = ask(session.eager, ids, 40)
        rules: dict[str, Any] = {
            "a processor": {"logits_processor": LogitsProcessorList([lambda ids, scores: scores])},
            "a criterion": {"stopping_criteria": StoppingCriteriaList([_never])},
            "a streamer": {"streamer": _Streamer()},
            "nothing": {},
        }
        for arguments in rules.values():
            assert_same(ask(model.generate, ids, 40, **arguments), expected)
            assert steps_of(session) == (39, 0)


def _never(ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
    return torch.zeros(ids.shape[0], dtype=torch.bool, device=ids.device)


class _Streamer:
    def put(self, value: torch.Tensor) -> None:
        pass

    def end(self) -> None:
        pass


def test_a_conversation_on_the_callers_own_cache(device: torch.device, attention: str) -> None:
    model = make_llama(device)
    with opened(model, attention) as session:
        answers = []
        for generate in (session.eager, model.generate):
            cache, ids, logits = DynamicCache(config=model.config), prompt(device, 12), []
            for turn in range(3):
                # As a chat goes: all tokens so far, on top of the cache of what was said before.
                output = ask(generate, ids, 20, **{cache_name(model): cache}, output_scores=False)
                logits += output.logits
                ids = torch.cat([output.sequences, prompt(device, 5, seed=turn + 1)], dim=-1)
                plain = generate(ids, max_new_tokens=4, do_sample=False, **{cache_name(model): cache})
                assert cache.get_seq_length() == plain.shape[1] - 1, "the caller's cache lacks tokens"
                ids = torch.cat([plain, prompt(device, 3, seed=turn + 7)], dim=-1)
            answers.append((ids, logits, cache))
        (expected, wanted, eagers), (got, kept, ours) = answers
        assert_same_bits(got, expected)
        for one, other in zip(kept, wanted, strict=True):
            assert_same_bits(one, other)
        assert_same_cache(ours, eagers)
        assert session.steps.captured == 3 * (19 + 3)
        assert not session.fallbacks


def test_no_room_to_try_a_class(device: torch.device, attention: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_llama(device)
    with opened(model, attention) as session:

        def full(*arguments: Any) -> bool:
            raise torch.cuda.OutOfMemoryError("no room")

        monkeypatch.setattr(lane_room, "holds", full)
        ids = prompt(device, 12)
        for _ in range(2):
            assert_same(ask(model.generate, ids, 8), ask(session.eager, ids, 8))
            assert steps_of(session) == (0, 7)
        assert "ran out of GPU memory" in str(session.steps.why)


def test_a_prompt_goes_straight_into_the_slots(device: torch.device, attention: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_llama(device)
    with opened(model, attention) as session:
        (lane,) = session._installation.stepper  # type: ignore[union-attr, misc]
        kept: list[int] = []
        begin = lane.begin

        def begun(cache: Any) -> None:
            kept.extend(layer.keys.numel() for layer in cache.layers)
            begin(cache)

        monkeypatch.setattr(lane, "begin", begun)
        ids = prompt(device, 150)
        assert_same(ask(model.generate, ids, 12), ask(session.eager, ids, 12))
        assert kept == [0] * model.config.num_hidden_layers, "the prompt's keys lie there twice"
        expected, got = ask(session.eager, ids, 1), ask(model.generate, ids, 1)
        assert_same_cache(cache_of(got), cache_of(expected))


def test_a_cache_that_holds_more_than_the_prompt_fails_as_in_eager(device: torch.device, attention: str) -> None:
    model = make_llama(device)
    with opened(model, attention) as session:
        errors = []
        for generate in (session.eager, model.generate):
            cache = cache_of(ask(session.eager, prompt(device, 12), 8))
            with pytest.raises(Exception) as caught:  # noqa: PT011
                ask(generate, prompt(device, 4), 8, **{cache_name(model): cache})
            errors.append((type(caught.value), str(caught.value)))
        assert errors[0] == errors[1]


def test_where_choosing_cannot_be_captured_it_runs_by_itself(
    device: torch.device, attention: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_llama(device)
    with opened(model, attention) as session:
        ids = prompt(device, 12)
        assert_same(ask(model.generate, ids, 4), ask(session.eager, ids, 4))
        (lane,) = session._installation.stepper  # type: ignore[union-attr, misc]
        lane._choice = None

        def refuse(function: Any) -> Any:
            raise Refused("capture-failed", "No.")

        monkeypatch.setattr(lane._capturer, "capture", refuse)
        assert_same(ask(model.generate, ids, 30), ask(session.eager, ids, 30))
        assert steps_of(session) == (29, 0)


def test_a_model_without_room_in_its_budget_is_refused(device: torch.device) -> None:
    model = make("mistral", device, attn_implementation="eager")
    with pytest.raises(Refused, match="All 0 lengths"):
        candidate("step").plan(model, Context(capturer_for(device), 0, 24, 48))
