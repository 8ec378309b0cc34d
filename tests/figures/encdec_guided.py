"""Guidance, constraints and ends, each alone and all together: on the device, captured, and as plain processors of a user's.

Every way has to give the tokens, the bits and the state of the generator that eager has with plain processors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from encdec_part import Part, same_bits
from encdec_plain import PlainBias, PlainMonotonic, PlainTemperature
from figure_parts import Result, say
from transformers import (
    ClassifierFreeGuidanceLogitsProcessor,
    LogitsProcessor,
    LogitsProcessorList,
    WhisperForConditionalGeneration,
)

from exactgraph.capture import capturer_for
from exactgraph.guidance.device import DeviceProcessor, OnDevice
from exactgraph.guidance.doubled import Guided, Unconditional
from exactgraph.guidance.processors import Automaton, ClassifierFree, Condition, ConditionalTemperature, Monotonic
from exactgraph.runtime.session import Session

_SCALE = 1.6
_ENDS = 600  # ids that end an answer, or half of a smaller vocabulary
_FOLLOWS = torch.tensor([[1, 0, 2], [2, 1, 0], [0, 2, 1]])
_BIAS = torch.tensor([[0.0, 1.5, -2.0], [3.0, -0.25, 0.0], [-1.0, 0.5, 2.5]])


class GuidedWhisper(Guided, WhisperForConditionalGeneration):
    """As a user's program would define it."""


@dataclass(frozen=True)
class Case:
    """``guidance``: none, over prompts of one length, or with a shorter unconditional one that is padded on the left."""

    guidance: str = "none"
    rules: tuple[str, ...] = ()
    ends: bool = False


CASES = {
    "none": Case(),
    "guidance": Case("same"),
    "guidance, padded": Case("padded"),
    "monotonic": Case(rules=("monotonic",)),
    "bias": Case(rules=("bias",)),
    "temperature": Case(rules=("temperature",)),
    "ends": Case(ends=True),
    "all": Case("padded", ("monotonic", "bias", "temperature"), ends=True),
}


class Rules:
    """The processors of a case, on the device and plain."""

    def __init__(self, vocabulary: int, device: torch.device) -> None:
        first, last = vocabulary // 50, vocabulary // 2
        resets = set(range(last + 1, vocabulary, 7))
        low, even = tuple(range(vocabulary // 8)), tuple(range(0, vocabulary, 2))
        kinds, follows, bias = torch.arange(vocabulary, device=device) % 3, _FOLLOWS.to(device), _BIAS.to(device)
        conditions = [Condition(0.6, low), Condition(1.7, even, back=3)]
        plain_conditions = [(0.6, set(low), 1), (1.7, set(even), 3)]
        self.on_device: dict[str, DeviceProcessor] = {
            "monotonic": Monotonic(first, last, resets, vocabulary, device),
            "bias": Automaton(kinds, follows, bias),
            "temperature": ConditionalTemperature(0.9, conditions, vocabulary, device),
        }
        self.plain: dict[str, LogitsProcessor] = {
            "monotonic": PlainMonotonic(first, last, resets),
            "bias": PlainBias(kinds, _FOLLOWS.tolist(), bias),
            "temperature": PlainTemperature(0.9, plain_conditions),
        }

    def ways(self, case: Case, session: Session) -> dict[str, tuple[Callable[..., Any], list[LogitsProcessor]]]:
        """What answers, and its processors; the first is the reference."""
        ours = [self.on_device[name] for name in case.rules]
        plain = [self.plain[name] for name in case.rules]
        if case.guidance != "none":
            ours.insert(0, ClassifierFree(_SCALE, "first"))
            plain.insert(0, ClassifierFreeGuidanceLogitsProcessor(_SCALE))
        device = session.model.device
        return {
            "eager": (session.eager, plain),
            "plain": (session.generate, plain),
            "on device": (session.generate, [OnDevice(ours)]),
            "captured": (session.generate, [OnDevice(ours, capturer_for(device))]),
        }


def guided(part: Part) -> Result:
    """Each case greedily and sampled. ``changes``: the case has other scores than eager without anything."""
    part.model.__class__ = GuidedWhisper
    # Whisper suppresses tokens before other processors run, and guidance between two scores of -inf is not a number.
    part.model.generation_config.suppress_tokens = part.model.generation_config.begin_suppress_tokens = None
    rules = Rules(part.model.config.vocab_size, part.device)
    found: Result = {}
    with part.session() as session:
        for sampled in (False, True):
            free = None
            for name, case in CASES.items():
                arguments = _arguments(part, case, sampled)
                ways = rules.ways(case, session)
                if case.ends:
                    arguments |= _ends(part, _answer(part, *ways["eager"], arguments))
                answers = {way: (_answer(part, *asked, arguments), part.generator()) for way, asked in ways.items()}
                expected, state = answers.pop("eager")
                free = free or expected
                found[f"{name}, {'sampled' if sampled else 'greedy'}"] = {
                    "steps": len(expected.logits),
                    "changes": not _all_equal(expected.scores, free.scores),
                    "ends": len(arguments.get("eos_token_id", ())),
                    **{way: _same(got, expected) and torch.equal(after, state) for way, (got, after) in answers.items()},
                }
                say(name)
        return {"cases": found, "captured_steps": session.steps.captured, "eager_steps": session.steps.eager}


def _arguments(part: Part, case: Case, sampled: bool) -> dict[str, Any]:
    window = part.windows[1]
    arguments = {**window.inputs(part.device), "max_new_tokens": part.sizes.short, "do_sample": sampled, "top_k": 0}
    start, *_ = window.ids
    if case.guidance == "padded":
        rows = ([start, 17, 40, 41, 99], [0, 0, start, 17, 60], [0, 0, 1, 1, 1])
        prompt, other, mask = (torch.tensor([row], device=part.device) for row in rows)
        guidance = Unconditional("first", prompt=other, mask=mask, encoded="zeros")
        return {**arguments, "decoder_input_ids": prompt, "decoder_guidance": guidance}
    if case.guidance == "same":
        return {**arguments, "decoder_guidance": Unconditional("first", encoded="zeros")}
    return arguments


def _answer(part: Part, generate: Callable[..., Any], processors: Sequence[LogitsProcessor], arguments: dict[str, Any]) -> Any:
    torch.manual_seed(11)
    everything = {"return_dict_in_generate": True, "output_logits": True, "output_scores": True}
    return generate(**arguments, **everything, logits_processor=LogitsProcessorList(processors))


def _ends(part: Part, answer: Any) -> dict[str, Any]:
    """Hundreds of ids, of which the first to come in ``answer`` is one that comes late, and ends it early."""
    tokens = answer.sequences[0, -len(answer.logits) :].tolist()
    end = max(tokens[: 3 * len(tokens) // 4], key=tokens.index)
    before = set(tokens[: tokens.index(end)])
    vocabulary = part.model.config.vocab_size
    others = [token for token in range(vocabulary) if token not in before][: min(_ENDS, vocabulary // 2)]
    return {"eos_token_id": sorted({*others, end}), "pad_token_id": 0}


def _same(got: Any, expected: Any) -> bool:
    return torch.equal(got.sequences, expected.sequences) and all(
        _all_equal(got[name], expected[name]) for name in ("logits", "scores")
    )


def _all_equal(ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor]) -> bool:
    return len(ours) == len(theirs) and all(same_bits(*both) for both in zip(ours, theirs, strict=True))
