"""Many windows: in sequence and as one batch through the decode loop, and the encoder ahead of it. Timed, so alone."""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from typing import Any

import torch
from encdec_part import Part, same_bits
from figure_parts import Result, cost

from exactgraph.canonical import read_json
from exactgraph.guidance.modes import compare_modes
from exactgraph.guidance.windows import Windows
from exactgraph.protocol.timing import synchronise
from exactgraph.runtime.attention import pinned
from exactgraph.runtime.precompute import CapturedEncoder, encode_as_generate, precompute
from exactgraph.stages.window_runs import Whole

_TOKENS = 64
_REPETITIONS = 5
_ON_DEVICE = 4 << 30  # bytes of encoder outputs


def windows(part: Part) -> Result:
    """In sequence and as one batch. ``sequential_matches``: windows in sequence with eager's tokens of another process."""
    expected = read_json(part.shared / "eager.json")["sets"]["greedy"]
    inputs, batch, tokens = part.inputs(len(expected)), part.sizes.batches[0], min(_TOKENS, part.sizes.tokens)
    script = Whole(part.windows[: len(expected)], part.device)
    part.context = replace(part.context, batches=(1, batch))
    with part.session() as session:
        asked = Windows(part.model, script, (), {"max_new_tokens": tokens, "do_sample": False})
        answers = asked.sequential(inputs)
        matches = sum(got[0].tolist() == trace["tokens"][:tokens] for got, trace in zip(answers, expected, strict=True))
        found = compare_modes(asked, inputs, batch, part.model.generation_config.pad_token_id)
        steps = {"captured_steps": session.steps.captured, "eager_steps": session.steps.eager}
        refused = [refusal.sentence for refusal in session.fallbacks]
    return {
        "batch": batch,
        "tokens": tokens,
        "sequential_matches": matches,
        **found,
        **steps,
        "refused": refused,
        **cost(part.context),
    }


def encoder(part: Part) -> Result:
    """Windows ahead of the loop: how many have eager's bits in the worst repetition, and the median of their seconds."""
    inputs = part.inputs(part.sizes.encoded)
    with pinned(part.attention), torch.no_grad():
        expected = [encode_as_generate(part.model, window) for window in inputs]
        captured = CapturedEncoder(part.model, part.context.capturer)
        ways = {"eager": (1, None), "captured": (1, captured)}
        ways |= {f"batches of {batch}": (batch, None) for batch in part.sizes.batches}
        found = {name: _encoded(part, inputs, expected, *way) for name, way in ways.items()}
    for way in found.values():
        way["ratio"] = found["eager"]["seconds"] / way["seconds"]
    return {"windows": len(inputs), "ways": found, **cost(part.context)}


def _encoded(
    part: Part, inputs: list[Any], expected: list[torch.Tensor], batch: int, encode: CapturedEncoder | None
) -> Result:
    seconds, equal = [], []
    for _ in range(1 + _REPETITIONS):
        synchronise(part.device)
        started = time.perf_counter()
        outputs = precompute(part.model, inputs, batch, _ON_DEVICE, encode)
        synchronise(part.device)
        seconds.append(time.perf_counter() - started)
        equal.append(sum(same_bits(ours[0], theirs) for ours, theirs in zip(outputs, expected, strict=True)))
    return {
        "bits_equal": min(equal),
        "seconds": statistics.median(seconds[1:]),
        "spread": [min(seconds[1:]), max(seconds[1:])],
    }
