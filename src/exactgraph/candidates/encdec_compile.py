"""``encdec-compile``: the decode step of an encoder-decoder at a fixed shape, compiled alone and captured afterwards.

A compiler fuses roundings and reorders additions as it sees fit, and attention over a whole bucket of slots has other kernels
than eager's, so no equal bits are claimed: the gate looks at the tokens. One step is compiled for each bucket and each shape
of the input. Compiling the whole model would do it anew for every prompt.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import EncoderDecoderCache

from exactgraph.candidates.base import Context, Decisions, Installation
from exactgraph.candidates.compiled import check_compiler
from exactgraph.candidates.encdec_step import EncDecStep
from exactgraph.candidates.encdec_stepper import EncDecStepper, Place
from exactgraph.capture.graph import Function
from exactgraph.models.cache import cache_name
from exactgraph.models.encdec_inputs import with_decoder_mask
from exactgraph.models.fixed import fixed
from exactgraph.models.known_masks import masks_known
from exactgraph.models.slots import bucket_of
from exactgraph.protocol.grades import TOKEN_IDENTICAL


class EncDecCompile(EncDecStep):
    id = "encdec-compile"
    claims = TOKEN_IDENTICAL
    route = "one compiled graph per bucket and shape of the input"

    def stepper(self, *arguments: Any) -> EncDecStepper:
        return CompiledStepper(*arguments)

    def classes(self, model: Any, stepper: EncDecStepper, context: Context, reach: int) -> list[Decisions]:
        return []

    def install(self, model: Any, decisions: Decisions, context: Context) -> Installation:
        check_compiler(model.device)
        return super().install(model, decisions, context)


class CompiledStepper(EncDecStepper):
    """One graph for each bucket; the slot of the new token is known on the device alone."""

    def _graph_for(self, place: Place, length: int) -> int:
        return bucket_of(length)

    def alone(self, place: Place, length: int) -> Function:
        longest = bucket_of(length)
        cache = EncoderDecoderCache(fixed(place.slots, length, self._slot), place.cross.view())
        arguments = with_decoder_mask(self._model, place.inputs.at(longest), longest)
        # The capture's warm-ups compile. Lengths are values here, not shapes, so there is nothing to compile anew.
        compiled: Any = torch.compile(self._model.forward, dynamic=False)

        def step() -> tuple[torch.Tensor, ...]:
            # Whatever eager is pinned to: flash attention takes no mask.
            with masks_known(place.full), sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
                output = compiled(**arguments, **{cache_name(self._model): cache}, return_dict=True)
            return (output.logits[:, -1],)

        return step


CANDIDATES = {EncDecCompile.id: EncDecCompile()}
