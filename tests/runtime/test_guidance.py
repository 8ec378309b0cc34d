"""Guidance and constraints: on the device, captured and as plain processors, through eager and ``encdec-step``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from encdec_models import VOCABULARY, make, question
from plain_processors import PlainMemory, PlainMonotonic, PlainTemperature
from runtime_outputs import EVERYTHING, assert_same, assert_same_bits, steps_of
from test_encdec_step import attention, opened  # noqa: F401
from transformers import ClassifierFreeGuidanceLogitsProcessor, LogitsProcessor, LogitsProcessorList, StoppingCriteriaList
from transformers.generation import EosTokenCriteria

from exactgraph.capture import capturer_for
from exactgraph.guidance.device import DeviceProcessor, OnDevice
from exactgraph.guidance.doubled import Guided, Unconditional
from exactgraph.guidance.ends import EndSet
from exactgraph.guidance.processors import Automaton, ClassifierFree, Condition, ConditionalTemperature, Monotonic
from exactgraph.models.host_reads import refusing_host_reads
from exactgraph.refusal import UserError
from exactgraph.runtime.user_code import runs_user_code

TIMES = (100, 299)
RESETS = {3, 310}
KIND_OF = torch.arange(VOCABULARY) % 3
FOLLOWS = torch.tensor([[1, 0, 2], [2, 1, 0], [0, 2, 1]])
BIAS = torch.tensor([[0.0, 1.5, -2.0], [3.0, -0.25, 0.0], [-1.0, 0.5, 2.5]])
EVEN, LOW = tuple(range(0, VOCABULARY, 2)), tuple(range(50))


def _monotonic(device: torch.device) -> tuple[DeviceProcessor, LogitsProcessor]:
    return Monotonic(*TIMES, RESETS, VOCABULARY, device), PlainMonotonic(*TIMES, RESETS)


def _temperature(device: torch.device) -> tuple[DeviceProcessor, LogitsProcessor]:
    conditions = [Condition(0.6, LOW), Condition(1.7, EVEN, back=3)]
    plain = PlainTemperature(0.9, [(0.6, set(LOW), 1), (1.7, set(EVEN), 3)])
    return ConditionalTemperature(0.9, conditions, VOCABULARY, device), plain


def _memory(device: torch.device) -> tuple[DeviceProcessor, LogitsProcessor]:
    parts = [part.to(device) for part in (KIND_OF, FOLLOWS, BIAS)]
    return Automaton(*parts), PlainMemory(KIND_OF.tolist(), FOLLOWS.tolist(), BIAS.to(device))


PAIRS = {"monotonic": _monotonic, "temperature": _temperature, "memory": _memory}
Pair = Callable[[torch.device], tuple[DeviceProcessor, LogitsProcessor]]


def _sequences(device: torch.device, rows: int = 2, tokens: int = 20) -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (rows, tokens), generator=torch.Generator().manual_seed(1)).to(device)


def _scores(device: torch.device, step: int, rows: int = 2) -> torch.Tensor:
    return torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(step)).to(device)


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_device_and_plain_processor_have_the_same_bits(device: torch.device, pair: Pair, captured: bool) -> None:
    ours, plain = pair(device)
    assert isinstance(ours, DeviceProcessor)
    processor = OnDevice([ours], capturer_for(device) if captured else None)
    ids, changed = _sequences(device), 0
    # A sequence, then another try at it from its prompt, whose state must not be that of the first.
    for first in (4, 7):
        for length in range(first, ids.shape[1]):
            tokens = ids[:, :length].flip(0) if first == 7 else ids[:, :length]
            scores = _scores(device, length)
            got, expected = processor(tokens, scores), plain(tokens, scores)
            assert_same_bits(got, expected)
            changed += not torch.equal(got, scores)
    assert changed > 10, "the processor never does anything"


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_a_try_from_a_prompt_one_token_longer_restarts(device: torch.device, pair: Pair) -> None:
    ours, plain = pair(device)
    processor = OnDevice([ours])
    first, second = _sequences(device)[:, :9], _sequences(device).flip(1)[:, :10]
    processor(first, _scores(device, 0))
    processor.restart()
    assert_same_bits(processor(second, _scores(device, 1)), plain(second, _scores(device, 1)))


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_a_device_processor_reads_nothing_on_the_host(device: torch.device, pair: Pair) -> None:
    ours, _ = pair(device)
    ids = _sequences(device)
    with refusing_host_reads(ours):
        ours.begin(ids)
        ours.advance(ids[:, 3])
        ours.apply(_scores(device, 3))


def test_what_is_users_own_among_processors(device: torch.device) -> None:
    """After the user's own code the model is looked at in every step; processors of exactgraph need no such look."""

    class Own:
        def begin(self, prompt: torch.Tensor) -> None: ...
        def advance(self, token: torch.Tensor) -> None: ...
        def apply(self, scores: torch.Tensor) -> torch.Tensor:
            return scores

    ours, plain = _monotonic(device)
    assert not runs_user_code(OnDevice([ours, ClassifierFree(1.5, "first")]), EndSet([3], device))
    assert runs_user_code(OnDevice([ours, Own()]))
    assert runs_user_code(LogitsProcessorList([OnDevice([ours]), plain]))


def test_guidance_has_the_bits_of_transformers(device: torch.device) -> None:
    scores, ids = _scores(device, 0, rows=4), _sequences(device)
    expected = ClassifierFreeGuidanceLogitsProcessor(1.5)(ids, scores)
    assert_same_bits(OnDevice([ClassifierFree(1.5, "first")])(ids, scores), expected)
    swapped = torch.cat([scores[2:], scores[:2]])
    assert_same_bits(OnDevice([ClassifierFree(1.5, "second")])(ids, swapped), expected)
    assert not torch.equal(OnDevice([ClassifierFree(1.5, "second")])(ids, scores), expected)
    with pytest.raises(UserError, match="which half is conditional"):
        ClassifierFree(1.5, "left")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="doubled batch"):
        ClassifierFree(1.5, "first").apply(scores[:3])


def _guided(family: str, device: torch.device) -> Any:
    model = make(family, device)
    kind = type(model)
    # As a user's module would define it, and not at each call: the guard compares the class.
    model.__class__ = type(f"Guided{kind.__name__}", (Guided, kind), {"__module__": kind.__module__})
    return model


def _ask(generate: Any, inputs: dict[str, Any], processors: Sequence[Any], **arguments: Any) -> Any:
    settings = {"max_new_tokens": 20, "do_sample": False, **EVERYTHING, **arguments}
    return generate(**inputs, logits_processor=LogitsProcessorList(processors), **settings)


@pytest.mark.parametrize("conditional", ["first", "second"])
@pytest.mark.parametrize("family", ["whisper", "t5", "bart", "frames"])
def test_guided_steps_have_eagers_bits(device: torch.device, attention: str, family: str, conditional: Any) -> None:  # noqa: F811
    model = _guided(family, device)
    with opened(model, attention) as session:
        answers = []
        for seed in (0, 1):
            asked = {**question(model, seed=seed), "decoder_guidance": Unconditional(conditional, encoded="zeros")}
            guidance = OnDevice([ClassifierFree(1.6, conditional)])
            expected, got = _ask(session.eager, asked, [guidance]), _ask(model.generate, asked, [guidance])
            assert_same(got, expected)
            # Whisper's generate returns the first of the two rows.
            assert got.logits[0].shape == (1 if family == "whisper" else 2, VOCABULARY)
            assert got.sequences.shape[0] == 1
            assert steps_of(session) == (19, 0)
            answers.append(got)
        plain = _ask(session.eager, question(model), [])
        assert not torch.equal(answers[0].scores[1], plain.scores[1]), "guidance makes no difference"


def test_eager_goes_on_with_guidance_where_the_budget_ends(device: torch.device, attention: str) -> None:  # noqa: F811
    model = _guided("t5", device)
    with opened(model, attention, budget=5) as session:
        asked = {**question(model), "decoder_guidance": Unconditional("first", encoded="zeros")}
        processors = [OnDevice([ClassifierFree(1.6, "first")])]
        assert_same(_ask(model.generate, asked, processors), _ask(session.eager, asked, processors))
        assert steps_of(session) == (5, 14)


def test_which_half_is_conditional_makes_no_difference_to_the_answer(device: torch.device, attention: str) -> None:  # noqa: F811
    """The halves trade places, and so do their rows; the guided scores stay the same."""
    model = _guided("t5", device)
    scores = []
    for half in ("first", "second"):
        asked = {**question(model), "decoder_guidance": Unconditional(half, encoded="zeros")}  # type: ignore[arg-type]
        scores.append(_ask(model.generate, asked, [OnDevice([ClassifierFree(1.6, half)])]).scores)  # type: ignore[arg-type]
    for ours, theirs in zip(*scores, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("family", ["whisper", "t5", "bart"])
def test_padding_on_the_left_of_a_shorter_unconditional_prompt(device: torch.device, attention: str, family: str) -> None:  # noqa: F811
    model = _guided(family, device)
    prompt = torch.tensor([[3, 17, 40, 41, 99]], device=device)
    other = torch.tensor([[0, 0, 3, 17, 60]], device=device)
    mask = torch.tensor([[0, 0, 1, 1, 1]], device=device)
    with opened(model, attention) as session:
        answers = []
        for ids, masked in ((other, mask), (other.masked_fill(mask == 0, 77), mask), (other, torch.ones_like(mask))):
            guidance = Unconditional("first", prompt=ids, mask=masked)
            asked = {**question(model), "decoder_input_ids": prompt, "decoder_guidance": guidance}
            processors = [OnDevice([ClassifierFree(1.6, "first")])]
            expected, got = _ask(session.eager, asked, processors), _ask(model.generate, asked, processors)
            assert_same(got, expected)
            assert steps_of(session) == (19, 0)
            answers.append(got)
        padded, otherwise_padded, unmasked = answers
        assert_same(padded, otherwise_padded)
        assert not torch.equal(padded.logits[1], unmasked.logits[1]), "the mask makes no difference"


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("family", ["whisper", "t5", "frames"])
def test_constraints_in_a_whole_call(device: torch.device, attention: str, family: str, sampled: bool) -> None:  # noqa: F811
    """On the device, captured and plain, in eager and in captured steps: one answer."""
    model = make(family, device)
    with opened(model, attention) as session:
        pairs = [build(device) for build in PAIRS.values()]
        ours = [pair[0] for pair in pairs]
        ways = [OnDevice(ours)], [OnDevice(ours, capturer_for(device))], [pair[1] for pair in pairs]
        answers = []
        for processors in ways:
            for generate in (session.eager, model.generate):
                torch.manual_seed(3)
                answers.append(_ask(generate, question(model), processors, do_sample=sampled, top_k=0))
            assert steps_of(session) == (19, 0)
        for answer in answers[1:]:
            assert_same(answer, answers[0])
        times = [token for token in answers[0].sequences[0].tolist() if TIMES[0] <= token <= TIMES[1]]
        assert len(times) > 1


def test_hundreds_of_ends(device: torch.device, attention: str) -> None:  # noqa: F811
    model = make("frames", device)
    with opened(model, attention) as session:
        inputs = question(model)
        free = _ask(session.eager, inputs, []).sequences[0, 1:].tolist()
        # The latest token that was not there before is the first of the ends to come.
        at = max(index for index, token in enumerate(free[:-1]) if token not in free[:index])
        assert at > 3, "the answer is degenerate"
        used = set(free[:at])
        ends = sorted({token for token in range(VOCABULARY) if token not in used})
        assert len(ends) > 300
        asked = {**inputs, "eos_token_id": ends, "pad_token_id": 0}
        expected, got = _ask(session.eager, asked, []), _ask(model.generate, asked, [])
        assert_same(got, expected)
        assert got.sequences.shape[1] == at + 2
        assert steps_of(session) == (at, 0)
        criteria = StoppingCriteriaList([EndSet(ends, device)])
        assert_same_bits(_ask(model.generate, inputs, [], stopping_criteria=criteria, pad_token_id=0).sequences, got.sequences)


def test_an_end_set_is_that_of_transformers(device: torch.device) -> None:
    ends = list(range(40, 390, 2))
    for step in range(30):
        ids = torch.randint(0, VOCABULARY, (3, 4), generator=torch.Generator().manual_seed(step)).to(device)
        expected = EosTokenCriteria(torch.tensor(ends, device=device))(ids, None)
        got = EndSet(ends, device)(ids)
        assert_same_bits(got, expected)
        assert got.tolist() == [int(token) in ends for token in ids[:, -1]]
    with pytest.raises(UserError, match="at least one"):
        EndSet([], device)
