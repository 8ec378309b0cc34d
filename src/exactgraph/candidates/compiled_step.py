"""``static-step-compile``: ``torch.compile`` of the step over a cache of fixed size, captured afterwards.

Attention runs over the whole bucket through a mask, so the compiler sees one shape a bucket. It fuses roundings and reorders
additions as it likes: nothing is claimed but tokens, and the gate decides.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from exactgraph.candidates.base import Context, Decisions, Installation
from exactgraph.candidates.compiled import check_compiler
from exactgraph.candidates.lane import Lane
from exactgraph.candidates.step import Lanes, Step, reach_of
from exactgraph.capture.graph import Function
from exactgraph.models.inputs import check_inputs, step_arguments
from exactgraph.models.rope import HeldRope
from exactgraph.models.slots import SlotCache, bucket_spans
from exactgraph.protocol.grades import TOKEN_IDENTICAL
from exactgraph.refusal import Refused


class StaticStepCompile(Step):
    id = "static-step-compile"
    claims = TOKEN_IDENTICAL

    def plan(self, model: Any, context: Context) -> Decisions:
        check_compiler(model.device)
        decisions: Decisions = {"reach": reach_of(model, context), "compiled": "step"}
        # The lengths that validation begins with show whether the compiler takes the model.
        installation = self.install(model, decisions, context)
        (lane,) = installation.stepper  # type: ignore[misc]
        lane.capture(1)
        return decisions

    def install(self, model: Any, decisions: Decisions, context: Context) -> Installation:
        check_inputs(model)
        rope = HeldRope(model, decisions["reach"])
        lane = CompiledLane(model, rope, context.capturer, reach=decisions["reach"], classes=[], budget=0)
        if lane.cache.window is not None:
            raise Refused("sliding-window", f"{type(model).__name__} attends to a window, which no step of fixed shape shows.")
        lane.classes = list(bucket_spans(lane.reach))
        return Installation(forwards=rope.forwards, stepper=Lanes([lane]))


class ZeroedSlots(SlotCache):
    """Slots that begin as zeros: a mask takes the weight of what lies beyond the live ones, and no weight of NaN is none."""

    def _buffer(self, states: torch.Tensor, capacity: int) -> torch.Tensor:
        return super()._buffer(states, capacity).zero_()


class CompiledLane(Lane):
    """A lane whose classes of lengths are its buckets."""

    slots = ZeroedSlots

    def by_class(self, longest: int) -> Function:
        cache = self.cache.up_to(longest, self._position[0])
        arguments = step_arguments(self._model, self._token, self._position, cache)
        slots = torch.arange(longest, device=self._model.device)

        def forward() -> torch.Tensor:
            mask = (slots <= self._position)[:, None, None]
            last: torch.Tensor = self._model(**arguments, attention_mask=mask, return_dict=True).logits[:, -1]
            return last

        compiled = torch.compile(forward, dynamic=False)

        def step() -> tuple[torch.Tensor, ...]:
            # Whatever eager is pinned to: flash attention takes no mask.
            with self._rope.held(), sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
                self._logits.copy_(compiled())
            return ()

        return step


CANDIDATES = {StaticStepCompile.id: StaticStepCompile()}
