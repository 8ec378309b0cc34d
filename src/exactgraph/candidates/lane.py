"""The decode step of a number of sequences of equal length, as graphs over slots.

Where attention can read its length on the device, one graph serves a class of lengths; every other length has a graph of its
own, captured when the length is first met, up to a budget. What neither covers runs eager.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar

import torch

from exactgraph.candidates.base import Stepper
from exactgraph.candidates.length_classes import Classes, holds
from exactgraph.capture.buffers import buffer
from exactgraph.capture.graph import Capturer, Function, Graph
from exactgraph.models.device_length import AttendByLength, DeviceLength, Shape
from exactgraph.models.inputs import step_arguments
from exactgraph.models.masks import masks_as_in_eager
from exactgraph.models.rope import HeldRope
from exactgraph.models.slots import SlotCache, bucket_of
from exactgraph.refusal import Refusal, Refused


class Lane(Stepper):
    """Steps of ``batch`` sequences. What a step reads and writes lies in static buffers:

    ``token``: int64 ``(batch, 1)``, fed next. ``logits``: ``(batch, vocabulary)`` in the model's dtype, of the last step.
    ``position``: int64 ``(batch, 1)``, the slot that the token goes to.
    """

    slots: ClassVar[type[SlotCache]] = SlotCache

    def __init__(
        self, model: Any, rope: HeldRope, capturer: Capturer, *, reach: int, classes: Classes, budget: int, batch: int = 1
    ) -> None:
        self.batch = batch
        self.device: torch.device = model.device
        self.batches = (batch,)
        self.cache = self.slots(model, batch)
        self._model = model
        self._rope = rope
        self._capturer = capturer
        self.reach = reach
        self.classes = classes
        #: What attention was called with when a step of a class last ran outside a graph.
        self.shapes: set[Shape] = set()
        self._budget = budget
        self._graphs: dict[tuple[int, int], Graph] = {}
        self._choice: Callable[[], Any] | None = None
        # Planning captures before any token was fed, and a warm-up must look up one that exists.
        self._token = buffer((batch, 1), torch.int64, self.device).zero_()
        self._position = buffer((batch, 1), torch.int64, self.device).zero_()
        self._logits = buffer((batch, self.cache.logits.shape[1]), self.cache.logits.dtype, self.device).zero_()
        self._live = DeviceLength(batch, self.device)
        self._closed: Refusal | None = None
        self._length = self._begun = 0

    def receive(self, cache: Any, ids: torch.Tensor, *, own: bool) -> None:
        if own and ids.shape[1] < self.reach:
            with suppress(Refused):  # no room: begin() finds that too, and says so
                self.cache.receive(cache, ids.shape[1])

    def begin(self, cache: Any) -> None:
        self.why = None
        self._length = self._begun = int(cache.get_seq_length())
        try:
            self._check_reach(self._length + 1)
            self.cache.load(cache)
        except Refused as refused:
            self.why = refused.refusal.sentence

    def feed(self, token: torch.Tensor) -> None:
        self._token.copy_(token)
        self._place(self._length + 1)

    def replays(self) -> bool:
        length = self._length + 1
        return (
            self.why is None
            and length <= self.reach
            and self._class_of(length) in self._graphs
            and bucket_of(length) == bucket_of(self._length)
            and not self._capturer.emulated  # which runs the model's own code at each replay
        )

    def run(self) -> torch.Tensor | None:
        length = self._length + 1
        graph = self._graph(length)
        if graph is None:
            return None
        graph.replay()
        self._length = length
        return self._logits

    def choose(self) -> torch.Tensor:
        if self._choice is None:
            try:
                self._choice = self._capturer.capture(self._feed_back).replay
            except Refused:
                # A few small kernels; launched one by one they do the same.
                self._choice = self._feed_back
            self._place(self._length)
        self._choice()
        return self._token

    def end(self, cache: Any, length: int) -> None:
        self.cache.unload(cache, self._begun, length)

    def eager_arguments(self, input_ids: torch.Tensor, cache: Any) -> dict[str, Any]:
        token = input_ids[:, -1:]
        return step_arguments(self._model, token, torch.full_like(token, input_ids.shape[1] - 1), cache)

    def _graph(self, length: int) -> Graph | None:
        """The graph for a step to ``length`` tokens, captured where it is new. None, and ``why``, without one."""
        if self.why is not None:
            return None
        key = self._class_of(length)
        graph = self._graphs.get(key)
        try:
            self._check_reach(length)
            self.cache.grow(length)
            return graph or self.capture(length)
        except Refused as refused:
            # What is captured stays; the rest of the sequence runs eager.
            self.why = refused.refusal.sentence
            return None

    def _check_reach(self, length: int) -> None:
        if length > self.reach:
            raise Refused("beyond-reach", f"Steps are captured up to {self.reach} tokens, and this one is to {length}.")

    def _class_of(self, length: int) -> tuple[int, int]:
        return next((found for found in self.classes if found[0] <= length <= found[1]), (length, length))

    def capture(self, length: int) -> Graph:
        """Capture the step that takes a sequence to ``length`` tokens. Raises ``Refused`` where none may be or can be."""
        key = self._class_of(length)
        alone = sum(first == last for first, last in self._graphs)
        if key not in self.classes and alone >= self._budget:
            raise Refused("budget", f"All {self._budget} lengths that may have a graph of their own have one.")
        if self._closed is not None:
            raise Refused(self._closed.reason, self._closed.sentence)
        # Warm-ups write the slots that the step itself will write, so the sequence does not mind them.
        self._place(length)
        try:
            with masks_as_in_eager():
                graph = self._capturer.capture(self.by_class(key[1]) if key in self.classes else self.alone(length))
            held = key not in self.classes or holds(self.shapes, *key, self.device)
        except torch.cuda.OutOfMemoryError as error:
            self._closed = Refusal("capture-out-of-memory", f"Trying a graph ran out of GPU memory: {error}")
            raise Refused(self._closed.reason, self._closed.sentence) from error
        except Refused as refused:
            # There is no room for another one. It is not asked for again at every step.
            self._closed = refused.refusal
            raise
        if not held:
            # Planned under another backend, or a library that decides anew in each process.
            self.classes = [found for found in self.classes if found != key]
            return self.capture(length)
        self._graphs[key] = graph
        return graph

    def alone(self, length: int) -> Function:
        """The step that takes a sequence to ``length`` tokens, in eager's own kernels."""
        cache = self.cache.at(length)

        def step() -> tuple[torch.Tensor, ...]:
            self._forward(cache)
            return ()

        return step

    def by_class(self, longest: int) -> Function:
        """The step that takes a sequence to any length of the class that ends with ``longest``."""
        cache = self.cache.up_to(longest, self._position[0])
        name = type(self._model).__name__

        def step() -> tuple[torch.Tensor, ...]:
            with AttendByLength(self._live, cache.layers, name) as attention:
                self._forward(cache)
            self.shapes = attention.shapes
            return ()

        return step

    def try_at(self, step: Function, length: int) -> torch.Tensor:
        """The logits of ``step``, uncaptured, at ``length``; ``(batch, vocabulary)``, in memory of their own."""
        self._place(length)
        with masks_as_in_eager(), torch.inference_mode(False), torch.no_grad():
            step()
        return self._logits.clone()

    def _place(self, length: int) -> None:
        """Set what the device knows of the length that the next step takes the sequence to."""
        self._position.fill_(length - 1)
        self._live.used.fill_(length)

    def _forward(self, cache: Any) -> None:
        with self._rope.held():
            output = self._model(**step_arguments(self._model, self._token, self._position, cache), return_dict=True)
        # Outputs of a graph may be overwritten by any other graph's replay; this buffer belongs to no pool.
        self._logits.copy_(output.logits[:, -1])

    def _feed_back(self) -> tuple[torch.Tensor, ...]:
        """Choose greedily as eager does, from the logits in fp32, and go one position on."""
        self._token.copy_(self._logits.to(torch.float32).argmax(dim=-1)[:, None])
        self._position.add_(1)
        self._live.used.add_(1)
        return ()
