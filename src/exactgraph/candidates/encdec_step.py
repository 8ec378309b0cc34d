"""``encdec-step``: the whole decode step of an encoder-decoder as one graph.

The encoder and the first forward pass over the decoder's prompt run in eager, and fill keys and values of cross-attention;
each call copies them into the fixed buffers that the graphs read. The decoder's own keys and values lie in slots, whose number
doubles when a sequence fills them. Eager's own kernels run inside the graphs, one graph for each sequence length and each
shape of the input, captured when first met.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from transformers import EncoderDecoderCache

from exactgraph.candidates.base import Candidate, Context, Decisions, Installation, Stepper
from exactgraph.capture.graph import Capturer, Function, Graph
from exactgraph.models.cache import cache_name
from exactgraph.models.cross import CrossCache, shape_of
from exactgraph.models.encdec_inputs import TOKEN, asked_once, check_call, check_encoder_decoder, prepared
from exactgraph.models.encdec_sample import sample_call
from exactgraph.models.forwards import attached
from exactgraph.models.host_reads import refusing_host_reads
from exactgraph.models.known_masks import Full, full_masks, masks_known
from exactgraph.models.rope import HeldRope
from exactgraph.models.slots import SlotCache, bucket_of
from exactgraph.models.step_inputs import GROWING, StepInputs, form_of
from exactgraph.refusal import Refused


class EncDecStep(Candidate):
    id = "encdec-step"
    route: ClassVar[str] = "one graph per length and shape of the input"

    def stepper(self, *arguments: Any) -> EncDecStepper:
        """What replays; ``arguments`` are those of :class:`EncDecStepper`."""
        return EncDecStepper(*arguments)

    def plan(self, model: Any, context: Context) -> Decisions:
        decisions: Decisions = {
            "route": self.route,
            "graphs": context.budget,
            "positions": _positions(model, context),
        }
        installation = self.install(model, decisions, context)
        stepper = installation.stepper
        assert isinstance(stepper, EncDecStepper)
        sample = sample_call(model)
        # A model that needs more than the output of its encoder shows only in a call whether its steps can be captured.
        decisions["tried"] = sample is not None
        if sample is not None:
            with attached(installation.forwards):
                stepper.rehearse(*sample)
        return decisions

    def install(self, model: Any, decisions: Decisions, context: Context) -> Installation:
        check_encoder_decoder(model)
        rope = HeldRope(model, decisions["positions"])
        stepper = self.stepper(model, rope, context.capturer, decisions["graphs"], context.batches)
        # Beyond what was tried, frequencies may change.
        stepper.limit = decisions["positions"] if rope.forwards else None
        return Installation(forwards=rope.forwards, stepper=stepper)


@dataclass
class Place:
    """Where the steps of inputs of one shape run. ``graphs`` by the longest sequence that they lead to, in tokens."""

    inputs: StepInputs
    cross: CrossCache
    slots: SlotCache
    full: Full
    graphs: dict[int, Graph] = field(default_factory=dict)

    def cache(self, length: int) -> EncoderDecoderCache:
        """The cache that the model is called with to take the sequence to ``length`` tokens."""
        return EncoderDecoderCache(self.slots.at(length), self.cross.view())


class EncDecStepper(Stepper):
    """Replays the steps of sequences of equal length. The model may make more rows of them: two of each under guidance.

    ``limit``: the longest sequence, in tokens, that may be captured; None where there is no such limit.
    """

    encoder_decoder = True

    def __init__(self, model: Any, rope: HeldRope, capturer: Capturer, budget: int, batches: tuple[int, ...]) -> None:
        self.batches = batches
        self.limit: int | None = None
        self._model = model
        self._rope = rope
        self._capturer = capturer
        self._budget = budget
        self._places: OrderedDict[Any, Place] = OrderedDict()
        self._slots: dict[int, SlotCache] = {}
        self._place: Place | None = None

    def serve(self, input_ids: torch.Tensor, model_kwargs: dict[str, Any]) -> None:
        check_call(self._model, model_kwargs)
        self._ask_for(input_ids, model_kwargs)

    def _ask_for(self, input_ids: torch.Tensor, model_kwargs: dict[str, Any]) -> None:
        self._ids = input_ids
        self._kwargs = model_kwargs
        self._kwargs_length = input_ids.shape[1]
        self._once = asked_once(self._model, model_kwargs)

    def begin(self, cache: Any) -> None:
        self.why = None
        self._cache = cache
        self._begun = self._length = int(cache.get_seq_length())
        self._place = None

    def feed(self, token: torch.Tensor) -> None:
        if self._once and self._place is not None:
            self._place.inputs.set(TOKEN, token)
        else:
            self._ids = torch.cat([self._ids, token], dim=-1)

    def run(self) -> torch.Tensor | None:
        length = self._length + 1
        try:
            place = self._placed(length)
            place.slots.grow(length)
            graph = place.graphs.get(self._graph_for(length)) or self._capture(place, length)
        except Refused as refused:
            self.why = refused.refusal.sentence
            return None
        self._arrive(length)
        graph.replay()
        self._length = length
        self._logits = graph.outputs[0]
        return self._logits

    def choose(self) -> torch.Tensor:
        token = self._logits.to(torch.float32).argmax(dim=-1)[:, None]
        self.feed(token)
        return token

    def end(self, cache: Any, length: int) -> None:
        if self._place is not None:
            self._place.slots.unload(cache.self_attention_cache, self._begun, length)
            self._place.inputs.forget()
            self._place = None

    def eager_arguments(self, input_ids: torch.Tensor) -> dict[str, Any]:
        self._advance(input_ids.shape[1])
        return prepared(self._model, input_ids, self._kwargs, self._cache)

    def rehearse(self, ids: torch.Tensor, model_kwargs: dict[str, Any], cache: Any) -> None:
        """Capture the step after a made-up prefill. Raises ``Refused`` where that fails or the host would have to wait."""
        self._ask_for(ids, model_kwargs)
        self.begin(cache)
        self.feed(ids[:, -1:])
        length = self._length + 1
        place = self._placed(length)
        work = self._work(place, length)
        with refusing_host_reads(self._model), torch.inference_mode(False), torch.no_grad():
            work()
        self._capture(place, length)

    def _graph_for(self, length: int) -> int:
        """The longest sequence, in tokens, that the graph for a step to ``length`` serves."""
        return length

    def _arrive(self, length: int) -> None:
        """A step to ``length`` tokens is about to be replayed. Where a graph serves one length, it knows."""

    def _placed(self, length: int) -> Place:
        """The place of this step, with all its buffers filled."""
        if self.limit is not None and length > self.limit:
            raise Refused("beyond-reach", f"Steps are captured up to {self.limit} tokens, and this one is to {length}.")
        if self._once and self._place is not None:
            return self._place
        self._advance(length)
        seen = self._cache if self._place is None else self._place.cache(length)
        inputs = prepared(self._model, self._ids, self._kwargs, seen)
        inputs.pop(cache_name(self._model), None)
        place = self._place_for(inputs, length)
        if place is not self._place:
            place.cross.load(self._cache.cross_attention_cache)
            if self._place is None:
                place.slots.load(self._cache.self_attention_cache)
            self._place = place
        place.inputs.fill(inputs)
        return place

    def _advance(self, length: int) -> None:
        """What transformers does to the model's arguments after each forward pass, up to a sequence of ``length`` tokens."""
        while self._kwargs_length < length:
            self._kwargs = self._model._update_model_kwargs_for_generation({}, self._kwargs, is_encoder_decoder=True)
            self._kwargs_length += 1

    def _place_for(self, inputs: dict[str, Any], length: int) -> Place:
        own, cross = self._cache.self_attention_cache, self._cache.cross_attention_cache
        rows = own.layers[0].keys.shape[0]
        full = full_masks(inputs)
        # Only a mask that grows has to lie in buffers of some length.
        longest = bucket_of(length) if inputs.get(GROWING) is not None else 0
        key = (form_of(inputs), shape_of(cross), full, rows, longest)
        place = self._places.get(key)
        if place is None:
            if rows not in self._slots:
                self._slots[rows] = SlotCache.like(own, type(self._model).__name__)
            place = self._places[key] = Place(StepInputs(inputs, longest), CrossCache(cross), self._slots[rows], full)
        self._places.move_to_end(key)
        return place

    def _capture(self, place: Place, length: int) -> Graph:
        """Capture the step that takes a sequence to ``length`` tokens.

        Beyond the budget, graphs of the shape that was not met for longest give way. Raises ``Refused`` where none may or
        none can be captured.
        """
        while sum(len(other.graphs) for other in self._places.values()) >= self._budget:
            oldest = next(iter(self._places))
            if self._places[oldest] is place:
                raise Refused("budget", f"All {self._budget} graphs that may be captured are, for inputs of this shape.")
            del self._places[oldest]
        graph = self._capturer.capture(self._work(place, length))
        place.graphs[self._graph_for(length)] = graph
        return graph

    def _work(self, place: Place, length: int) -> Function:
        """The step that takes a sequence to ``length`` tokens. Writes only slot ``length - 1`` of the decoder's own cache."""
        arguments = {**place.inputs.at(length), cache_name(self._model): place.cache(length)}

        def step() -> tuple[torch.Tensor, ...]:
            with self._rope.held(), masks_known(place.full):
                output = self._model(**arguments, return_dict=True)
            return (output.logits[:, -1],)

        return step


def _positions(model: Any, context: Context) -> int:
    """The longest sequence, in tokens, that frequencies of a rotary embedding are tried for."""
    config = model.config.get_text_config(decoder=True)
    return int(getattr(config, "max_target_positions", None) or context.confirmed_length)


CANDIDATES = {EncDecStep.id: EncDecStep()}
