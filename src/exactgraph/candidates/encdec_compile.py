"""``encdec-compile``: the decode step of an encoder-decoder at a fixed shape, compiled alone and captured afterwards.

A compiler fuses roundings and reorders additions as it sees fit, and attention over a whole bucket of slots has other kernels
than eager's, so no equal bits are claimed: the gate looks at the tokens. One step is compiled for each bucket and each shape
of the input. Compiling the whole model would do it anew for every prompt.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from transformers import EncoderDecoderCache

from exactgraph.candidates.base import Context, Decisions, Installation
from exactgraph.candidates.compiled import check_compiler
from exactgraph.candidates.encdec_step import EncDecStep, EncDecStepper, Place
from exactgraph.capture.buffers import buffer
from exactgraph.capture.graph import Function
from exactgraph.models.cache import cache_name
from exactgraph.models.encdec_inputs import TOKEN
from exactgraph.models.fixed import fixed
from exactgraph.models.known_masks import masks_known
from exactgraph.models.slots import bucket_of
from exactgraph.models.step_inputs import GROWING
from exactgraph.protocol.grades import TOKEN_IDENTICAL


class EncDecCompile(EncDecStep):
    id = "encdec-compile"
    claims = TOKEN_IDENTICAL
    route = "one compiled graph per bucket and shape of the input"

    def stepper(self, *arguments: Any) -> EncDecStepper:
        return CompiledStepper(*arguments)

    def install(self, model: Any, decisions: Decisions, context: Context) -> Installation:
        check_compiler(model.device)
        return super().install(model, decisions, context)


class CompiledStepper(EncDecStepper):
    """One graph for each bucket; the slot of the new token is known on the device alone."""

    def __init__(self, model: Any, *arguments: Any) -> None:
        super().__init__(model, *arguments)
        self._slot = buffer((1,), torch.int64, model.device).zero_()

    def _graph_for(self, length: int) -> int:
        return bucket_of(length)

    def _arrive(self, length: int) -> None:
        self._slot.fill_(length - 1)

    def _work(self, place: Place, length: int) -> Function:
        self._arrive(length)
        cache = EncoderDecoderCache(fixed(place.slots, length, self._slot), place.cross.view())
        arguments = {**place.inputs.at(bucket_of(length)), cache_name(self._model): cache}
        if arguments.get(GROWING) is None and GROWING in inspect.signature(type(self._model).forward).parameters:
            # Some decoders (BART) would make it themselves, and look at the length for that.
            rows = arguments[TOKEN].shape[0]
            arguments[GROWING] = torch.ones((rows, bucket_of(length)), dtype=torch.int64, device=self._model.device)
        # The capture's warm-ups compile. Lengths are values here, not shapes, so there is nothing to compile anew.
        forward = torch.compile(self._model.forward, dynamic=False)

        def step() -> tuple[torch.Tensor, ...]:
            with masks_known(place.full):
                return (forward(**arguments, return_dict=True).logits[:, -1],)

        return step


CANDIDATES = {EncDecCompile.id: EncDecCompile()}
