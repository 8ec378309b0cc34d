"""``encdec-step``: the whole decode step of an encoder-decoder as one graph.

The encoder and the first forward pass over the decoder's prompt run in eager, and fill keys and values of cross-attention.
Eager's own kernels run inside the graphs that replay the steps after it. Where attention is flash attention without a mask
(Whisper, BART, Marian), a graph serves a class of lengths, as in ``step``; elsewhere (T5 has a bias) each length has its own.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from exactgraph.candidates.base import Candidate, Context, Decisions, Installation
from exactgraph.candidates.encdec_stepper import EncDecStepper, Place
from exactgraph.candidates.length_classes import Classes, find_classes
from exactgraph.models.encdec_inputs import check_encoder_decoder
from exactgraph.models.encdec_sample import sample_call
from exactgraph.models.forwards import attached
from exactgraph.models.rope import HeldRope
from exactgraph.models.slots import SMALLEST
from exactgraph.refusal import Refused


class EncDecStep(Candidate):
    id = "encdec-step"
    route: ClassVar[str] = "graphs for each shape of the input"

    def stepper(self, *arguments: Any) -> EncDecStepper:
        """What replays; ``arguments`` are those of :class:`EncDecStepper`."""
        return EncDecStepper(*arguments)

    def plan(self, model: Any, context: Context) -> Decisions:
        decisions: Decisions = {
            "route": self.route,
            "graphs": context.budget,
            "positions": _positions(model, context),
            "classes": [],
        }
        installation = self.install(model, decisions, context)
        stepper = installation.stepper
        assert isinstance(stepper, EncDecStepper)
        sample = sample_call(model)
        # A model that needs more than the output of its encoder shows only in a call whether its steps can be captured.
        decisions["tried"] = sample is not None
        if sample is not None:
            with attached(installation.forwards):
                stepper.capture(stepper.rehearse(*sample), 2)
                decisions["classes"] = self.classes(model, stepper, context, decisions["positions"])
        return decisions

    def install(self, model: Any, decisions: Decisions, context: Context) -> Installation:
        check_encoder_decoder(model)
        rope = HeldRope(model, decisions["positions"])
        stepper = self.stepper(model, rope, context.capturer, decisions["graphs"], context.batches)
        # Beyond what was tried, frequencies may change.
        stepper.limit = decisions["positions"] if rope.forwards else None
        stepper.classes = {
            found["rows"]: [(first, last) for first, last in found["lengths"]] for found in decisions["classes"]
        }
        return Installation(forwards=rope.forwards, stepper=stepper)

    def classes(self, model: Any, stepper: EncDecStepper, context: Context, reach: int) -> list[Decisions]:
        """Lengths that share a graph, up to ``reach``, by rows of the batch that the model sees; or why there are none."""
        found = []
        # Guidance doubles the rows.
        for rows in sorted({rows for batch in context.batches for rows in (batch, 2 * batch)}):
            sample = sample_call(model, rows)
            assert sample is not None
            lengths: Classes = []
            why = None
            try:
                lengths = _found(model, stepper, stepper.rehearse(*sample), reach, context.confirmed_length)
            except Refused as refused:
                why = refused.refusal.sentence
            found.append({"rows": rows, "lengths": [list(ends) for ends in lengths], "why": why})
        return found


def _found(model: Any, stepper: EncDecStepper, place: Place, reach: int, longest: int) -> Classes:
    """Classes whose attention has eager's bits at each length, and whose steps have them at the edges up to ``longest``.

    Raises ``Refused`` where there are none.
    """
    stepper.try_at(place, stepper.by_class(place, min(reach, SMALLEST)), 1)
    classes = find_classes(stepper.shapes, reach, model.device)
    if not classes:
        raise Refused("attention-bits", "Attention at a length on the device differs from eager's in its bits.")
    generator = torch.Generator(model.device).manual_seed(0)
    for first, last in classes:
        for length in (first, min(last, longest)):
            if not first <= length <= longest:
                continue
            place.slots.bucket(length).rehearse(length, generator)
            by_class = stepper.try_at(place, stepper.by_class(place, last), length)
            if not torch.equal(by_class, stepper.try_at(place, stepper.alone(place, length), length)):
                raise Refused("class-bits", f"A step to {length} tokens differs where its length is read on the device.")
    return classes


def _positions(model: Any, context: Context) -> int:
    """The longest sequence, in tokens, that steps are planned for: the model's last position, where it has one."""
    config = model.config.get_text_config(decoder=True)
    ends = (getattr(config, name, None) for name in ("max_target_positions", "max_position_embeddings"))
    return int(next((end for end in ends if end), context.confirmed_length))


CANDIDATES = {EncDecStep.id: EncDecStep()}
