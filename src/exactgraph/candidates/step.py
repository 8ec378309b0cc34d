"""``step``: the whole decode step, embedding to logits, as one graph over a KV cache in fixed buffers.

Eager's own kernels run inside the graph. Their number of KV positions is baked in, so each sequence length has a graph of its
own, captured when the length is first met, up to a budget of lengths; every other length runs eager.
"""

from __future__ import annotations

from typing import Any

import torch

from exactgraph.candidates.base import Candidate, Context, Decisions, Installation, Stepper
from exactgraph.capture.buffers import buffer
from exactgraph.capture.graph import Capturer, Function, Graph
from exactgraph.models.cache import cache_name
from exactgraph.models.forwards import attached
from exactgraph.models.host_reads import refusing_host_reads
from exactgraph.models.inputs import check_inputs
from exactgraph.models.masks import masks_as_in_eager
from exactgraph.models.rope import HeldRope
from exactgraph.models.slots import SlotCache
from exactgraph.refusal import Refused


class Step(Candidate):
    id = "step"

    def plan(self, model: Any, context: Context) -> Decisions:
        decisions: Decisions = {
            "route": "one graph per length",
            "lengths": context.budget,
            "capacity": context.confirmed_length,
        }
        installation = self.install(model, decisions, context)
        stepper = installation.stepper
        assert isinstance(stepper, LengthStepper)
        with attached(installation.forwards):
            # The longest too: a window may be full there, or another rule hold.
            for length in (context.validated_length, context.confirmed_length):
                stepper.check(length)
            # One capture shows whether this model's step can be captured at all, before a validation is spent on it.
            stepper.capture(context.validated_length)
        return decisions

    def install(self, model: Any, decisions: Decisions, context: Context) -> Installation:
        check_inputs(model)
        cache = SlotCache(model, decisions["capacity"])
        rope = HeldRope(model, cache.capacity)
        stepper = LengthStepper(model, cache, rope, context.capturer, decisions["lengths"])
        return Installation(forwards=rope.forwards, stepper=stepper)


class LengthStepper(Stepper):
    """One graph for each sequence length, over one :class:`SlotCache`."""

    def __init__(self, model: Any, cache: SlotCache, rope: HeldRope, capturer: Capturer, budget: int) -> None:
        self._model = model
        self._cache = cache
        self._rope = rope
        self._capturer = capturer
        self._budget = budget
        self._graphs: dict[int, Graph] = {}
        # Planning captures before any token was fed, and a warm-up must look up one that exists.
        self._token = buffer((1, 1), torch.int64, model.device).zero_()
        self._length = 0
        self._begun = 0

    def begin(self, cache: Any) -> None:
        self._begun = self._length = self._cache.load(cache)

    def step(self, token: torch.Tensor) -> torch.Tensor | None:
        length = self._length + 1
        graph = self._graphs.get(length)
        if graph is None:
            if length > self._cache.capacity or len(self._graphs) >= self._budget:
                return None
            try:
                graph = self.capture(length)
            except Refused:
                # The budget was more than the device has room for. What is captured stays; the rest runs eager.
                self._budget = len(self._graphs)
                return None
        self._token.copy_(token)
        graph.replay()
        self._length = length
        return graph.outputs[0]

    def end(self, cache: Any) -> None:
        self._cache.unload(cache, self._begun, self._length)

    def check(self, length: int) -> None:
        """Run the step once, uncaptured. Raises ``Refused`` where the host has to wait for something in it."""
        work = self._work(length)
        with masks_as_in_eager(), refusing_host_reads(self._model), torch.inference_mode(False), torch.no_grad():
            work()

    def capture(self, length: int) -> Graph:
        """Capture the step that takes a sequence to ``length`` tokens."""
        with masks_as_in_eager():
            graph = self._capturer.capture(self._work(length))
        self._graphs[length] = graph
        return graph

    def _work(self, length: int) -> Function:
        """The step that takes a sequence to ``length`` tokens. Writes only slot ``length - 1`` of the KV cache."""
        positions = buffer((1, 1), torch.int64, self._token.device).fill_(length - 1)
        arguments = {cache_name(self._model): self._cache.at(length)}

        def step() -> tuple[torch.Tensor, ...]:
            with self._rope.held():
                output = self._model(
                    input_ids=self._token,
                    position_ids=positions,
                    use_cache=True,
                    logits_to_keep=1,
                    return_dict=True,
                    **arguments,
                )
            return (output.logits[:, -1],)

        return step


CANDIDATES = {Step.id: Step()}
