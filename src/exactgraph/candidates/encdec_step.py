"""``encdec-step``: the whole decode step of an encoder-decoder as one graph.

The encoder and the first forward pass over the decoder's prompt run in eager, and fill keys and values of cross-attention;
each call copies them into the fixed buffers that the graphs read. The decoder's own keys and values lie in slots, whose number
doubles when a sequence fills them. Eager's own kernels run inside the graphs, one graph for each sequence length and each
shape of the input, captured when first met.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

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
from exactgraph.models.slots import SlotCache
from exactgraph.models.step_inputs import StepInputs, form_of
from exactgraph.refusal import Refused

SMALLEST = 128  # tokens in the smallest bucket of slots


class EncDecStep(Candidate):
    id = "encdec-step"

    def plan(self, model: Any, context: Context) -> Decisions:
        decisions: Decisions = {
            "route": "one graph per length and shape of the input",
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
        stepper = EncDecStepper(model, rope, context.capturer, decisions["graphs"])
        # Beyond what was tried, frequencies may change.
        stepper.limit = decisions["positions"] if rope.forwards else None
        return Installation(forwards=rope.forwards, stepper=stepper)


@dataclass
class Place:
    """Where the steps of inputs of one shape run, within one bucket of slots. ``graphs`` by the length they lead to."""

    inputs: StepInputs
    cross: CrossCache
    slots: SlotCache
    full: Full
    graphs: dict[int, Graph] = field(default_factory=dict)

    def cache(self, length: int) -> EncoderDecoderCache:
        """The cache that the model is called with to take the sequence to ``length`` tokens."""
        return EncoderDecoderCache(self.slots.at(length), self.cross.view())


class EncDecStepper(Stepper):
    """Replays the steps of one sequence. Rows of a batch are what the model makes of it: two under guidance.

    ``limit``: the longest sequence, in tokens, that may be captured; None where there is no such limit.
    """

    encoder_decoder = True

    def __init__(self, model: Any, rope: HeldRope, capturer: Capturer, budget: int) -> None:
        self.limit: int | None = None
        self._model = model
        self._rope = rope
        self._capturer = capturer
        self._budget = budget
        self._places: OrderedDict[Any, Place] = OrderedDict()
        self._slots: dict[tuple[int, int], SlotCache] = {}
        self._place: Place | None = None

    def serve(self, input_ids: torch.Tensor, model_kwargs: dict[str, Any]) -> None:
        check_call(self._model, model_kwargs)
        self._ids = input_ids
        self._kwargs = model_kwargs
        self._kwargs_length = input_ids.shape[1]
        self._once = asked_once(self._model, model_kwargs)

    def begin(self, cache: Any) -> None:
        self._cache = cache
        self._begun = self._length = int(cache.get_seq_length())
        self._place = None

    def step(self, token: torch.Tensor) -> torch.Tensor | None:
        length = self._length + 1
        if self.limit is not None and length > self.limit:
            return None
        self._ids = torch.cat([self._ids, token], dim=-1)
        try:
            place = self._placed(token, length)
            graph = place.graphs.get(length) or self._capture(place, length)
        except Refused:
            return None
        graph.replay()
        self._length = length
        return graph.outputs[0]

    def end(self, cache: Any) -> None:
        if self._place is not None:
            self._place.slots.unload(cache.self_attention_cache, self._begun, self._length)
            self._place.inputs.forget()
            self._place = None

    def eager_arguments(self, input_ids: torch.Tensor) -> dict[str, Any]:
        self._advance(input_ids.shape[1])
        return prepared(self._model, input_ids, self._kwargs, self._cache)

    def rehearse(self, ids: torch.Tensor, model_kwargs: dict[str, Any], cache: Any) -> None:
        """Capture the step after a made-up prefill. Raises ``Refused`` where that fails or the host would have to wait."""
        self.serve(ids, model_kwargs)
        self.begin(cache)
        place = self._placed(ids[:, -1:], self._length + 1)
        work = self._work(place, self._length + 1)
        with refusing_host_reads(self._model), torch.inference_mode(False), torch.no_grad():
            work()
        self._capture(place, self._length + 1)
        self._place = None

    def _placed(self, token: torch.Tensor, length: int) -> Place:
        """The place of this step, with all its buffers filled."""
        if self._once and self._place is not None and length <= self._place.slots.capacity:
            self._place.inputs.set(TOKEN, token)
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
            elif place.slots is not self._place.slots:
                place.slots.take(self._place.slots, self._length)
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
        rows, bucket = own.layers[0].keys.shape[0], bucket_of(length)
        full = full_masks(inputs)
        key = (form_of(inputs), shape_of(cross), full, rows, bucket)
        place = self._places.get(key)
        if place is None:
            slots = self._slots.get((rows, bucket))
            if slots is None:
                slots = self._slots[rows, bucket] = SlotCache(self._model, bucket, like=own)
            place = self._places[key] = Place(StepInputs(inputs, bucket), CrossCache(cross), slots, full)
        self._places.move_to_end(key)
        return place

    def _capture(self, place: Place, length: int) -> Graph:
        """Capture the step that takes a sequence to ``length`` tokens.

        Beyond the budget, graphs of the shape that was not met for longest give way. Raises ``Refused`` where none may or
        none can be captured.
        """
        if sum(len(other.graphs) for other in self._places.values()) >= self._budget:
            oldest = next(iter(self._places))
            if self._places[oldest] is place:
                raise Refused("budget", f"{self._budget} graphs are captured, as many as may be.")
            del self._places[oldest]
            return self._capture(place, length)
        graph = place.graphs[length] = self._capturer.capture(self._work(place, length))
        return graph

    def _work(self, place: Place, length: int) -> Function:
        """The step that takes a sequence to ``length`` tokens. Writes only slot ``length - 1`` of the decoder's own cache."""
        arguments = {**place.inputs.at(length), cache_name(self._model): place.cache(length)}

        def step() -> tuple[torch.Tensor, ...]:
            with self._rope.held(), masks_known(place.full):
                output = self._model(**arguments, return_dict=True)
            return (output.logits[:, -1],)

        return step


def bucket_of(length: int) -> int:
    """How many slots a sequence of ``length`` tokens gets."""
    slots = SMALLEST
    while slots < length:
        slots *= 2
    return slots


def _positions(model: Any, context: Context) -> int:
    """The longest sequence, in tokens, that frequencies of a rotary embedding are tried for."""
    config = model.config.get_text_config(decoder=True)
    return int(getattr(config, "max_target_positions", None) or context.confirmed_length)


CANDIDATES = {EncDecStep.id: EncDecStep()}
