"""Steps of an encoder-decoder, replayed.

Every call copies its input's keys and values of cross-attention into fixed buffers; the decoder's own lie in slots, whose
number doubles when a sequence fills them. Inputs of each shape have graphs of their own: one for a class of lengths where
attention can read its length on the device, else one for each length.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import EncoderDecoderCache

from exactgraph.candidates.base import Stepper
from exactgraph.candidates.length_classes import Classes, holds
from exactgraph.capture.buffers import buffer
from exactgraph.capture.graph import Capturer, Function, Graph
from exactgraph.models.cache import cache_name
from exactgraph.models.cross import CrossCache, shape_of
from exactgraph.models.device_length import AttendByLength, DeviceLength, Shape
from exactgraph.models.encdec_inputs import TOKEN, asked_once, check_call, prepared, with_decoder_mask
from exactgraph.models.fixed import placed
from exactgraph.models.host_reads import refusing_host_reads
from exactgraph.models.known_masks import Full, full_masks, masks_known
from exactgraph.models.rope import HeldRope
from exactgraph.models.slots import SlotCache, bucket_of
from exactgraph.models.step_inputs import GROWING, StepInputs, form_of
from exactgraph.refusal import Refused

# Why a step may have to be captured for each length alone.
_NOT_BY_CLASS = {"attention-call", "capture-failed", "sliding-window"}


@dataclass
class Place:
    """Where the steps of inputs of one shape run. ``graphs`` by the longest sequence that they lead to, in tokens.

    ``rows``: of the batch that the model sees. ``classes``: lengths, first and last, that share a graph.
    """

    inputs: StepInputs
    cross: CrossCache
    slots: SlotCache
    full: Full
    rows: int
    classes: Classes
    graphs: dict[int, Graph] = field(default_factory=dict)

    def cache(self, length: int) -> EncoderDecoderCache:
        """The cache that the model is called with to take the sequence to ``length`` tokens."""
        return EncoderDecoderCache(self.slots.at(length), self.cross.view())


class EncDecStepper(Stepper):
    """Replays the steps of sequences of equal length. The model may make more rows of them: two of each under guidance.

    ``limit``: the longest sequence, in tokens, that may be captured; None where there is no such limit. ``classes``: of
    lengths that share a graph, by rows. ``shapes``: what attention was called with when a step of a class last ran uncaptured.
    """

    def __init__(self, model: Any, rope: HeldRope, capturer: Capturer, budget: int, batches: tuple[int, ...]) -> None:
        self.batches = batches
        self.limit: int | None = None
        self.classes: dict[int, Classes] = {}
        self.shapes: set[Shape] = set()
        self._model = model
        self._rope = rope
        self._capturer = capturer
        self._budget = budget
        self._places: OrderedDict[Any, Place] = OrderedDict()
        self._slots: dict[int, SlotCache] = {}
        self._place: Place | None = None
        self._slot = buffer((1,), torch.int64, model.device).zero_()
        self._live: dict[int, DeviceLength] = {}

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
            # The same token may be fed again, where the step after it was not captured.
            self._ids = torch.cat([self._ids[:, : self._length], token], dim=-1)

    def replays(self) -> bool:
        length, place = self._length + 1, self._place
        # A model that is asked for the inputs of each step runs code of its own.
        if self.why is not None or place is None or not self._once or self._capturer.emulated:
            return False
        within = self.limit is None or length <= self.limit
        return within and bucket_of(length) == bucket_of(self._length) and self._graph_for(place, length) in place.graphs

    def run(self) -> torch.Tensor | None:
        if self.why is not None:
            return None
        length = self._length + 1
        try:
            place = self._placed(length)
            place.slots.grow(length)
            graph = place.graphs.get(self._graph_for(place, length)) or self.capture(place, length)
        except Refused as refused:
            self.why = refused.refusal.sentence
            return None
        self._arrive(place, length)
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

    def eager_arguments(self, input_ids: torch.Tensor, cache: Any) -> dict[str, Any]:
        self._advance(input_ids.shape[1])
        return prepared(self._model, input_ids, self._kwargs, cache)

    def rehearse(self, ids: torch.Tensor, model_kwargs: dict[str, Any], cache: Any) -> Place:
        """The place of the step after a made-up prefill. Raises ``Refused`` where the host would have to wait in it."""
        self._ask_for(ids, model_kwargs)
        self.begin(cache)
        self.feed(ids[:, -1:])
        length = self._length + 1
        place = self._placed(length)
        with refusing_host_reads(self._model):
            self.try_at(place, self.alone(place, length), length)
        return place

    def try_at(self, place: Place, step: Function, length: int) -> torch.Tensor:
        """The logits of ``step``, uncaptured, at ``length``; ``(rows, vocabulary)``, in memory of their own."""
        self._arrive(place, length)
        with torch.inference_mode(False), torch.no_grad():
            return step()[0].clone()

    def _graph_for(self, place: Place, length: int) -> int:
        """The longest sequence, in tokens, that the graph for a step to ``length`` serves."""
        return next((last for first, last in place.classes if first <= length <= last), length)

    def _arrive(self, place: Place, length: int) -> None:
        """Tell the device that the next step goes to ``length`` tokens."""
        self._slot.fill_(length - 1)
        self._live_of(place).used.fill_(length)

    def _live_of(self, place: Place) -> DeviceLength:
        if place.rows not in self._live:
            self._live[place.rows] = DeviceLength(place.rows, self._slot.device)
        return self._live[place.rows]

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
            # Another call's tensors may have been written in ways that torch does not count.
            place.inputs.forget()
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
            # Attention through a mask cannot read its length on the device.
            classes = list(self.classes.get(rows, [])) if full[0] else []
            parts = StepInputs(inputs, longest), CrossCache(cross), self._slots[rows]
            place = self._places[key] = Place(*parts, full, rows, classes)
        self._places.move_to_end(key)
        return place

    def capture(self, place: Place, length: int) -> Graph:
        """Capture the step that takes a sequence to ``length`` tokens.

        Beyond the budget, graphs of the shape that was not met for longest give way. Raises ``Refused`` where none may or
        none can be captured.
        """
        while sum(len(other.graphs) for other in self._places.values()) >= self._budget:
            oldest = next(iter(self._places))
            if self._places[oldest] is place:
                raise Refused("budget", f"All {self._budget} graphs that may be captured are, for inputs of this shape.")
            del self._places[oldest]
        found = next((found for found in place.classes if found[0] <= length <= found[1]), None)
        if found is not None:
            graph = self._captured_by_class(place, found, length)
            if graph is None:
                return self.capture(place, length)
            place.graphs[found[1]] = graph
            return graph
        graph = self._captured(place, self.alone(place, length), length)
        place.graphs[self._graph_for(place, length)] = graph
        return graph

    def _captured_by_class(self, place: Place, found: tuple[int, int], length: int) -> Graph | None:
        """The graph for the class ``found``, or None, and the class is gone, where there can be none."""
        try:
            graph = self._captured(place, self.by_class(place, found[1]), length)
        except Refused as refused:
            if refused.refusal.reason not in _NOT_BY_CLASS:
                raise
            # Inputs of this shape have a mask, say, that those had not by which the classes were found.
            place.classes = []
            return None
        if holds(self.shapes, *found, self._slot.device):
            return graph
        # Planned under another backend, or a library that decides anew in each process.
        place.classes.remove(found)
        return None

    def _captured(self, place: Place, step: Function, length: int) -> Graph:
        # Warm-ups write the slots that the step itself will write, so the sequence does not mind them.
        self._arrive(place, length)
        return self._capturer.capture(step)

    def alone(self, place: Place, length: int) -> Function:
        """The step that takes a sequence to ``length`` tokens, in eager's own kernels."""
        return self._step(place, place.inputs.at(length), place.cache(length))

    def by_class(self, place: Place, longest: int) -> Function:
        """The step that takes a sequence to any length of the class that ends with ``longest``."""
        own, cross = placed(place.slots, longest, self._slot), place.cross.view()
        arguments = with_decoder_mask(self._model, place.inputs.at(longest), longest)
        forward = self._step(place, arguments, EncoderDecoderCache(own, cross))
        live, name = self._live_of(place), type(self._model).__name__

        def step() -> tuple[torch.Tensor, ...]:
            with AttendByLength(live, own.layers, name, besides=cross.layers) as attention:
                logits = forward()
            self.shapes = attention.shapes
            return logits

        return step

    def _step(self, place: Place, inputs: dict[str, Any], cache: EncoderDecoderCache) -> Function:
        arguments = {**inputs, cache_name(self._model): cache}

        def step() -> tuple[torch.Tensor, ...]:
            with self._rope.held(), masks_known(place.full):
                output = self._model(**arguments, return_dict=True)
            return (output.logits[:, -1],)

        return step
