"""``encdec-step``: eager's bits from Whisper, T5, BART, Marian and a model of a user's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from encdec_models import FAMILIES, make, question
from runtime_outputs import EVERYTHING, assert_same, assert_same_bits, assert_same_cache, refusal_of, steps_of
from sessions import open_session
from transformers import DynamicCache, EncoderDecoderCache

from exactgraph.candidates import encdec_stepper
from exactgraph.candidates.base import Context
from exactgraph.candidates.registry import candidate
from exactgraph.capture import capturer_for
from exactgraph.models import device_length
from exactgraph.models.cache import cache_name, cache_of
from exactgraph.models.encdec_sample import sample_call
from exactgraph.models.host_reads import refusing_host_reads
from exactgraph.refusal import Refused
from exactgraph.runtime.session import Session

TOKENS = 30


@pytest.fixture
def attention(device: torch.device) -> str:
    """T5 has a bias, and flash takes none."""
    return "math" if device.type == "cuda" else "default"


def opened(model: Any, attention: str, budget: int = 512, batches: tuple[int, ...] = (1,)) -> Session:
    context = Context(capturer_for(model.device), budget, 64, 256, batches)
    chosen = candidate("encdec-step")
    return open_session(model, chosen, context, attention)


def ask(generate: Any, inputs: dict[str, Any], tokens: int = TOKENS, **arguments: Any) -> Any:
    return generate(**inputs, **{"max_new_tokens": tokens, "do_sample": False, **EVERYTHING, **arguments})


def graphs_of(session: Session) -> int:
    stepper: Any = session._installation.stepper
    return sum(len(place.graphs) for place in stepper._places.values())


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_has_eagers_bits(device: torch.device, attention: str, family: str) -> None:
    model = make(family, device)
    with opened(model, attention) as session:
        inputs = question(model)
        expected, got = ask(session.eager, inputs), ask(model.generate, inputs)
        assert_same(got, expected)
        assert got.keys() == expected.keys()
        assert steps_of(session) == (TOKENS - 1, 0)
        assert len(set(got.sequences[0].tolist())) > 8, "the answers are degenerate"


@pytest.mark.parametrize("family", FAMILIES)
def test_the_cache_is_the_callers_own(device: torch.device, attention: str, family: str) -> None:
    model = make(family, device)
    with opened(model, attention) as session:
        inputs = question(model)
        expected, got = ask(session.eager, inputs), ask(model.generate, inputs)
        ask(model.generate, question(model, seed=5))
        ours, theirs = cache_of(got), cache_of(expected)
        assert_same_cache(ours.self_attention_cache, theirs.self_attention_cache)
        assert_same_cache(ours.cross_attention_cache, theirs.cross_attention_cache)
        assert ours.is_updated == theirs.is_updated


@pytest.mark.parametrize("family", FAMILIES)
def test_sampling_at_the_same_seed(device: torch.device, attention: str, family: str) -> None:
    model = make(family, device)
    with opened(model, attention) as session:
        inputs = question(model, seed=2)
        answers = []
        for generate in (session.eager, model.generate):
            torch.manual_seed(7)
            answers.append((ask(generate, inputs, do_sample=True, temperature=0.9, top_k=20), torch.rand(1)))
        (expected, after_eager), (got, after) = answers
        assert_same(got, expected)
        assert_same_bits(after, after_eager)
        assert steps_of(session) == (TOKENS - 1, 0)


@pytest.mark.parametrize("family", FAMILIES)
def test_two_inputs_in_a_row(device: torch.device, attention: str, family: str) -> None:
    """Public fault 25: keys and values of cross-attention that stay those of the first input."""
    model = make(family, device)
    with opened(model, attention) as session:
        first, second = question(model, seed=0), question(model, seed=1)
        expected = [ask(session.eager, inputs) for inputs in (first, second)]
        got = [ask(model.generate, inputs) for inputs in (first, second)]
        for ours, theirs in zip(got, expected, strict=True):
            assert_same(ours, theirs)
            assert steps_of(session) == (TOKENS - 1, 0)
        assert not torch.equal(got[0].logits[1], got[1].logits[1]), "the inputs make no difference"


@pytest.mark.parametrize("family", FAMILIES)
def test_inputs_in_turns(device: torch.device, attention: str, family: str) -> None:
    model = make(family, device)
    with opened(model, attention) as session:
        inputs = [question(model, seed=seed, tokens=tokens) for seed, tokens in ((0, 12), (1, 7))]
        expected = [ask(session.eager, each, 12) for each in inputs]
        for turn in (0, 1, 0, 1, 1, 0):
            assert_same(ask(model.generate, inputs[turn], 12), expected[turn])
            assert steps_of(session) == (11, 0)


@pytest.mark.parametrize("family", ["whisper", "t5", "bart"])
def test_growth_past_a_bucket(device: torch.device, attention: str, family: str) -> None:
    model = make(family, device)
    with opened(model, attention) as session:
        inputs = question(model, seed=3)
        expected, got = ask(session.eager, inputs, 300), ask(model.generate, inputs, 300)
        assert_same(got, expected)
        assert steps_of(session) == (299, 0)
        # The short bucket still serves short sequences.
        assert_same(ask(model.generate, inputs, 20), ask(session.eager, inputs, 20))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_end_of_sequence_ends_it(device: torch.device, attention: str, family: str) -> None:
    model = make(family, device)
    with opened(model, attention) as session:
        inputs = question(model)
        plain = ask(session.eager, inputs).sequences[0].tolist()
        # The token that comes up latest for the first time; the very first step and the last one would show no end.
        end = max(plain[1:-1], key=plain.index)
        arguments = {"eos_token_id": end, "pad_token_id": 0}
        expected, got = ask(session.eager, inputs, **arguments), ask(model.generate, inputs, **arguments)
        assert_same(got, expected)
        assert got.sequences[0, -1] == end or family == "whisper"
        captured, eager = steps_of(session)
        assert 0 < captured < TOKENS - 1
        assert eager == 0


@pytest.mark.parametrize("family", ["t5", "bart", "marian"])
def test_padding_of_the_encoders_input(device: torch.device, attention: str, family: str) -> None:
    model = make(family, device)
    with opened(model, attention) as session:
        inputs = question(model)
        answers = []
        for masked in (0, 4):
            mask = torch.ones_like(inputs["input_ids"])
            mask[:, 12 - masked :] = 0
            asked = {**inputs, "attention_mask": mask}
            expected = ask(session.eager, asked)
            for _ in range(2):
                assert_same(ask(model.generate, asked), expected)
                assert steps_of(session) == (TOKENS - 1, 0)
            answers.append(expected.logits[0])
        assert not torch.equal(*answers), "the mask makes no difference"


@pytest.mark.parametrize("family", ["whisper", "t5", "bart"])
@pytest.mark.parametrize("masked", [0, 2])
def test_a_prompt_for_the_decoder(device: torch.device, attention: str, family: str, masked: int) -> None:
    model = make(family, device)
    with opened(model, attention) as session:
        prompt = torch.tensor([[3, 17, 40, 41, 99]], device=device)
        mask = torch.ones_like(prompt)
        mask[:, :masked] = 0
        inputs = {**question(model), "decoder_input_ids": prompt, "decoder_attention_mask": mask}
        expected, got = ask(session.eager, inputs), ask(model.generate, inputs)
        assert_same(got, expected)
        assert steps_of(session) == (TOKENS - 1, 0)


@pytest.mark.parametrize("family", FAMILIES)
def test_each_length_alone(device: torch.device, attention: str, family: str) -> None:
    """Attention that is not flash attention has a graph for each length."""
    model = make(family, device, attn_implementation="eager")
    with opened(model, attention) as session:
        for seed in (0, 1):
            inputs = question(model, seed=seed)
            assert_same(ask(model.generate, inputs), ask(session.eager, inputs))
            assert steps_of(session) == (TOKENS - 1, 0)
        assert graphs_of(session) == TOKENS - 1


@pytest.mark.parametrize("family", ["whisper", "bart", "marian", "frames"])
def test_a_graph_for_a_class_of_lengths(device: torch.device, family: str) -> None:
    model = make(family, device)
    with opened(model, "flash" if device.type == "cuda" else "default") as session:
        for seed in (0, 1):
            inputs = question(model, seed=seed)
            assert_same(ask(model.generate, inputs, 140), ask(session.eager, inputs, 140))
            assert steps_of(session) == (139, 0)
        # Where classes end depends on the GPU.
        assert graphs_of(session) == 2 if device.type == "cpu" else graphs_of(session) < 20


@pytest.mark.parametrize("family", ["whisper", "bart", "marian", "frames"])
def test_the_step_of_a_class_reads_nothing_on_the_host(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def unread(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, used: Any, scale: Any) -> torch.Tensor:
        """As on a GPU, where the length is not looked at."""
        return torch.nn.functional.scaled_dot_product_attention(query, keys, values, scale=scale)

    monkeypatch.setattr(device_length, "attention_of_live", unread)
    model = make(family, torch.device("cpu"))
    with opened(model, "default") as session:
        stepper: Any = session._installation.stepper
        sample = sample_call(model)
        assert sample is not None
        place = stepper.rehearse(*sample)
        with refusing_host_reads(model):
            stepper.try_at(place, stepper.by_class(place, 128), 2)


@pytest.mark.parametrize("family", ["whisper", "bart"])
def test_a_class_that_does_not_hold_here_is_left_alone(
    device: torch.device, attention: str, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make(family, device)
    with opened(model, attention) as session:
        monkeypatch.setattr(encdec_stepper, "holds", lambda *arguments: False)
        inputs = question(model)
        assert_same(ask(model.generate, inputs), ask(session.eager, inputs))
        assert steps_of(session) == (TOKENS - 1, 0)
        assert graphs_of(session) == TOKENS - 1


def test_a_bias_leaves_each_length_alone() -> None:
    model = make("t5", torch.device("cpu"))
    decisions = candidate("encdec-step").plan(model, Context(capturer_for(model.device), 64, 64, 256))
    assert [found["lengths"] for found in decisions["classes"]] == [[], []]
    assert "through a mask" in decisions["classes"][0]["why"]


@pytest.mark.parametrize("family", FAMILIES)
def test_eager_goes_on_where_the_budget_ends(device: torch.device, attention: str, family: str) -> None:
    model = make(family, device, attn_implementation="eager")
    with opened(model, attention, budget=5) as session:
        inputs = question(model)
        expected, got = ask(session.eager, inputs), ask(model.generate, inputs)
        assert_same(got, expected)
        assert steps_of(session) == (5, TOKENS - 6)
        assert session.last is not None
        assert session.last.steps is not None
        assert "All 5 graphs" in str(session.last.steps.why)


def test_shapes_not_met_lately_give_up_their_graphs(device: torch.device, attention: str) -> None:
    model = make("t5", device)
    with opened(model, attention, budget=20) as session:
        for tokens in (5, 6, 7, 5):
            inputs = question(model, tokens=tokens)
            assert_same(ask(model.generate, inputs, 16), ask(session.eager, inputs, 16))
            assert steps_of(session) == (15, 0)
        assert graphs_of(session) <= 20


@pytest.mark.parametrize("family", FAMILIES)
def test_encoder_outputs_of_the_callers_own(device: torch.device, attention: str, family: str) -> None:
    model = make(family, device)
    with opened(model, attention) as session:
        inputs = question(model)
        main = inputs.pop(model.main_input_name)
        with torch.no_grad():
            encoded = model.get_encoder()(main)
        asked = {**inputs, "encoder_outputs": encoded}
        assert_same(ask(model.generate, asked), ask(session.eager, asked))
        assert steps_of(session) == (TOKENS - 1, 0)


def test_a_cache_of_the_callers_own(device: torch.device, attention: str) -> None:
    model = make("t5", device)
    inputs, name = question(model), cache_name(model)
    with opened(model, attention) as session:
        caches = []
        for generate in (session.eager, model.generate):
            cache = EncoderDecoderCache(DynamicCache(config=model.config), DynamicCache(config=model.config))
            generate(**inputs, **{name: cache}, max_new_tokens=12, do_sample=False)
            caches.append(cache)
        assert steps_of(session) == (11, 0)
        assert_same_cache(caches[1].self_attention_cache, caches[0].self_attention_cache)
        assert_same_cache(caches[1].cross_attention_cache, caches[0].cross_attention_cache)
        # One that holds another input's keys and values is not ours to continue.
        model.generate(**question(model, seed=1), **{name: caches[1]}, max_new_tokens=4, do_sample=False)
        assert refusal_of(session) == "cache-kind"


@pytest.mark.parametrize("family", ["t5", "bart", "frames"])
def test_several_inputs_at_once(device: torch.device, attention: str, family: str) -> None:
    model = make(family, device)
    with opened(model, attention, batches=(1, 3)) as session:
        each = [question(model, seed=seed) for seed in range(3)]
        inputs = {name: torch.cat([one[name] for one in each]) for name in each[0]}
        end = ask(session.eager, inputs).sequences[1, 12].item()
        asked = {"eos_token_id": end, "pad_token_id": 0}
        for arguments in ({}, asked):
            expected, got = ask(session.eager, inputs, **arguments), ask(model.generate, inputs, **arguments)
            assert_same(got, expected)
            assert steps_of(session)[1] == 0
        pair = {name: value[:2] for name, value in inputs.items()}
        assert_same(ask(model.generate, pair), ask(session.eager, pair))
        assert refusal_of(session) == "batch"


def test_an_argument_written_behind_torchs_back(device: torch.device, attention: str) -> None:
    model = make("frames", device)
    with opened(model, attention) as session:
        inputs = question(model)
        seen = []
        for style in (0, 3, 1):
            # No version counter moves, as when a graph of the caller's writes the tensor.
            inputs["style"].data.fill_(style)
            expected = ask(session.eager, inputs, 8)
            assert_same(ask(model.generate, inputs, 8), expected)
            # The last call before the next writing gives no cache back, so nothing tells the stepper that it has ended.
            assert_same_bits(model.generate(**inputs, max_new_tokens=8, do_sample=False), expected.sequences)
            seen.append(expected.logits[1])
        assert not torch.equal(seen[0], seen[1]), "the style makes no difference"


@pytest.mark.parametrize("family", ["whisper", "bart"])
def test_calls_from_inside_inference_mode_and_outside(device: torch.device, attention: str, family: str) -> None:
    model = make(family, device)
    with opened(model, attention) as session:
        inputs = question(model)
        expected = ask(session.eager, inputs, 140)
        for inside in (True, False, True):
            with torch.inference_mode(inside):
                got = ask(model.generate, inputs, 140)
            assert_same_bits(got.sequences, expected.sequences)
            assert steps_of(session) == (139, 0)


def test_windows_of_a_long_recording(device: torch.device, attention: str) -> None:
    """Whisper decodes a long recording window by window, all in one call of generate."""
    model = make("whisper", device)
    model.generation_config.no_timestamps_token_id = 300
    model.generation_config.is_multilingual = False
    model.generation_config.eos_token_id = 2
    with opened(model, attention) as session:
        generator = torch.Generator().manual_seed(4)
        inputs = {
            "input_features": torch.randn(1, 16, 3 * 40, generator=generator).to(device, model.dtype),
            "attention_mask": torch.ones(1, 3 * 40, dtype=torch.int64, device=device),
        }
        asked = {"return_timestamps": True, "max_new_tokens": 20, "do_sample": False}
        expected, got = session.eager(**inputs, **asked), model.generate(**inputs, **asked)
        assert_same_bits(got, expected)
        captured, eager = steps_of(session)
        assert captured > 19
        assert eager == 0


@pytest.mark.parametrize("sampled", [False, True])
def test_whispers_ways_of_trying_again(device: torch.device, attention: str, sampled: bool) -> None:
    """Thresholds, other temperatures for a window that fails them, and prompts from the windows before."""
    model = make("whisper", device)
    model.generation_config.no_timestamps_token_id = 300
    model.generation_config.is_multilingual = False
    model.generation_config.eos_token_id = 2
    model.generation_config.prev_sot_token_id = 299
    with opened(model, attention) as session:
        generator = torch.Generator().manual_seed(4)
        inputs = {
            "input_features": torch.randn(1, 16, 3 * 40, generator=generator).to(device, model.dtype),
            "attention_mask": torch.ones(1, 3 * 40, dtype=torch.int64, device=device),
        }
        asked = {
            "return_timestamps": True,
            "max_new_tokens": 20,
            "temperature": (0.0, 0.6) if sampled else 0.0,
            "logprob_threshold": -0.01,
            "compression_ratio_threshold": 1.35,
            "condition_on_prev_tokens": True,
        }
        answers = []
        for generate in (session.eager, model.generate):
            torch.manual_seed(5)
            answers.append((generate(**inputs, **asked), torch.rand(1)))
        assert_same_bits(answers[1][0], answers[0][0])
        assert_same_bits(answers[1][1], answers[0][1])
        captured, _ = steps_of(session)
        assert captured > 19


def test_beams_run_eager(device: torch.device, attention: str) -> None:
    model = make("t5", device)
    with opened(model, attention) as session:
        inputs = question(model)
        asked = {"num_beams": 2, "max_new_tokens": 8, "do_sample": False}
        assert_same_bits(model.generate(**inputs, **asked), session.eager(**inputs, **asked))
        assert refusal_of(session) == "generation-mode"


def test_a_decoder_alone_is_refused_by_name(device: torch.device, llama: Any) -> None:
    with pytest.raises(Refused, match="has no encoder") as caught:
        candidate("encdec-step").plan(llama, Context(capturer_for(device), 64, 24, 48))
    assert caught.value.refusal.reason == "no-encoder"
