"""``step``: the whole decode step, embedding to logits, as a graph over a KV cache in fixed buffers.

Eager's own kernels run inside the graph. Where attention is flash attention, which can read its KV length on the device, a
graph serves a class of lengths; elsewhere each length has a graph of its own, up to a budget. Every other length runs eager.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from exactgraph.candidates.base import Candidate, Context, Decisions, Installation, Stepper
from exactgraph.candidates.kernel_names import compare_kernels
from exactgraph.candidates.lane import Lane
from exactgraph.candidates.length_classes import Classes, find_classes
from exactgraph.models.forwards import attached
from exactgraph.models.host_reads import refusing_host_reads
from exactgraph.models.inputs import check_inputs
from exactgraph.models.rope import HeldRope, recomputes
from exactgraph.models.slots import SMALLEST
from exactgraph.refusal import Refused

#: Tokens of context that steps are planned for where neither the model ends earlier nor the protocol goes further.
_CONTEXT = 8192


class Step(Candidate):
    id = "step"

    def plan(self, model: Any, context: Context) -> Decisions:
        decisions: Decisions = {
            "reach": reach_of(model, context),
            "lengths": context.budget,
            "lanes": [{"batch": batch, "classes": []} for batch in context.batches],
        }
        installation = self.install(model, decisions, context)
        assert isinstance(installation.stepper, Lanes)
        with attached(installation.forwards):
            return {**decisions, "lanes": [_planned(model, context, lane) for lane in installation.stepper]}

    def install(self, model: Any, decisions: Decisions, context: Context) -> Installation:
        check_inputs(model)
        reach = decisions["reach"]
        rope = HeldRope(model, reach)
        lanes = [
            Lane(
                model,
                rope,
                context.capturer,
                reach=reach,
                classes=[(first, last) for first, last in planned["classes"]],
                budget=decisions["lengths"],
                batch=planned["batch"],
            )
            for planned in decisions["lanes"]
        ]
        return Installation(forwards=rope.forwards, stepper=Lanes(lanes))


class Lanes(Stepper):
    """A lane for each number of sequences; one works at a time."""

    def __init__(self, lanes: list[Lane]) -> None:
        self._lanes = {lane.batch: lane for lane in lanes}
        self.batches = tuple(self._lanes)
        self._lane = lanes[0]

    def __iter__(self) -> Iterator[Lane]:
        return iter(self._lanes.values())

    @property
    def why(self) -> str | None:  # type: ignore[override]
        return self._lane.why

    def receive(self, cache: Any, ids: torch.Tensor, *, own: bool) -> None:
        self._lane = self._lanes[ids.shape[0]]
        self._lane.receive(cache, ids, own=own)

    def begin(self, cache: Any) -> None:
        self._lane.begin(cache)

    def feed(self, token: torch.Tensor) -> None:
        self._lane.feed(token)

    def replays(self) -> bool:
        return self._lane.replays()

    def run(self) -> torch.Tensor | None:
        return self._lane.run()

    def choose(self) -> torch.Tensor:
        return self._lane.choose()

    def end(self, cache: Any, length: int) -> None:
        self._lane.end(cache, length)

    def eager_arguments(self, input_ids: torch.Tensor, cache: Any) -> dict[str, Any]:
        return self._lane.eager_arguments(input_ids, cache)


def reach_of(model: Any, context: Context) -> int:
    """The longest sequence, in tokens, that steps are captured for."""
    if recomputes(model):
        # Each position up to here is tried whenever the candidate is installed.
        return context.confirmed_length
    ends = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None)
    return max(context.confirmed_length, min(ends or _CONTEXT, _CONTEXT))


def _planned(model: Any, context: Context, lane: Lane) -> Decisions:
    """What one lane decides: the classes of lengths, or why there are none."""
    # The longest too: a window may be full there, or another rule hold.
    for length in (context.validated_length, context.confirmed_length):
        with refusing_host_reads(model):
            lane.try_at(lane.alone(length), length)
    why = None
    try:
        lane.classes = _classes(model, lane)
        _check_steps(lane, context.confirmed_length)
    except Refused as refused:
        lane.classes, why = [], refused.refusal.sentence
    # One capture shows whether this model's step can be captured at all, before a validation is spent on it.
    graph = lane.capture(context.validated_length)
    kernels = compare_kernels(model, lane.batch, graph, context.validated_length)
    return {"batch": lane.batch, "classes": [list(found) for found in lane.classes], "why": why, "kernels": kernels}


def _classes(model: Any, lane: Lane) -> Classes:
    reach = lane.reach
    if lane.cache.window is not None:
        # A full window moves with every token, and has a mask.
        reach = min(reach, lane.cache.window - 1)
    lane.try_at(lane.by_class(min(reach, SMALLEST)), 1)
    classes = find_classes(lane.shapes, reach, model.device)
    if not classes:
        raise Refused("attention-bits", "Attention at a length on the device differs from eager's in its bits.")
    return classes


def _check_steps(lane: Lane, longest: int) -> None:
    """Compare whole steps at the edges of each class up to ``longest``, with NaN beyond the live keys and values.

    Raises ``Refused`` (``class-bits``) where the logits of a class differ from those of a length alone.
    """
    generator = torch.Generator(lane.device).manual_seed(0)
    for first, last in lane.classes:
        if first > longest:
            return
        for length in (first, min(last, longest)):
            lane.cache.bucket(length).rehearse(length, generator)
            if not torch.equal(lane.try_at(lane.by_class(last), length), lane.try_at(lane.alone(length), length)):
                raise Refused("class-bits", f"A step to {length} tokens differs where its length is read on the device.")


CANDIDATES = {Step.id: Step()}
