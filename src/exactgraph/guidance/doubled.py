"""The doubled batch of classifier-free guidance, for any encoder-decoder.

A model class that inherits from :class:`Guided` takes ``generate(decoder_guidance=Unconditional(…))``: its forward passes
see twice as many rows as there are sequences, and :class:`exactgraph.guidance.processors.ClassifierFree` makes one row of two
again. That is what eager does, so it is the reference for captured steps, which ask the same method for the inputs of a step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from transformers.modeling_outputs import BaseModelOutput

from exactgraph.guidance.processors import Half
from exactgraph.refusal import UserError

_MASK, _ENCODED, _ENCODER_MASK = "decoder_attention_mask", "encoder_outputs", "attention_mask"


@dataclass
class Unconditional:
    """The other half of the batch.

    ``conditional``: which half holds the sequences as they were asked; the same has to be said to ``ClassifierFree``.
    ``prompt``: int64 ``(sequences, prompt tokens)``, what the decoder is fed in the unconditional half in place of the prompt;
    None for the same. The shorter one of two prompts is padded on the left: ``conditional_mask`` and ``mask``, int64 of the
    prompt's shape, are 0 where padded; None for no padding. ``encoded``: the encoder's output, ``(sequences, positions,
    hidden)``; None for the same, and ``zeros`` stands for one that says nothing. ``inputs``: the model's own arguments that
    are other in this half, by name; every other tensor with a row for each sequence is repeated.
    """

    conditional: Half
    prompt: torch.Tensor | None = None
    mask: torch.Tensor | None = None
    conditional_mask: torch.Tensor | None = None
    encoded: torch.Tensor | str | None = None
    inputs: dict[str, torch.Tensor] = field(default_factory=dict)
    _doubled: tuple[torch.Tensor, BaseModelOutput] | None = field(default=None, init=False, repr=False)

    def double(self, ids: torch.Tensor, arguments: dict[str, Any]) -> tuple[torch.Tensor, dict[str, Any]]:
        """``ids``, int64 ``(sequences, tokens)``, and the arguments of a forward pass, for the doubled batch."""
        rows, tokens = ids.shape
        other = ids
        if self.prompt is not None:
            if self.prompt.shape[0] != rows or self.prompt.shape[1] > tokens:
                raise UserError("The unconditional prompt has to be as long as the conditional one: pad the shorter one.")
            other = torch.cat([self.prompt, ids[:, self.prompt.shape[1] :]], dim=1)
        doubled = {name: self._both(name, value, rows) for name, value in arguments.items()}
        if self.mask is not None or self.conditional_mask is not None:
            doubled[_MASK] = self._join(*(_grown(mask, ids) for mask in (self.conditional_mask, self.mask)))
        return self._join(ids, other), doubled

    def _both(self, name: str, value: Any, rows: int) -> Any:
        if name == _ENCODED:
            return self._encoder_outputs(value)
        if name in self.inputs:
            return self._join(value, self.inputs[name])
        if isinstance(value, torch.Tensor) and value.ndim and value.shape[0] == rows:
            return self._join(value, value)
        return value

    def _encoder_outputs(self, outputs: Any) -> BaseModelOutput:
        hidden = outputs[0]
        # The same tensors in every step of a call, so that nobody has to copy them again.
        if self._doubled is None or self._doubled[0] is not hidden:
            other = hidden if self.encoded is None else self.encoded
            if isinstance(other, str):
                if other != "zeros":
                    raise UserError(f"encoded is {other!r}; it is a tensor, None for the same, or zeros.")
                other = torch.zeros_like(hidden)
            self._doubled = (hidden, BaseModelOutput(last_hidden_state=self._join(hidden, other)))
        return self._doubled[1]

    def _join(self, conditional: torch.Tensor, unconditional: torch.Tensor) -> torch.Tensor:
        halves = (conditional, unconditional) if self.conditional == "first" else (unconditional, conditional)
        return torch.cat(halves, dim=0)


def _grown(mask: torch.Tensor | None, ids: torch.Tensor) -> torch.Tensor:
    """``mask`` of the prompt, for all of ``ids``; None masks nothing."""
    ones = torch.ones_like(ids)
    if mask is None:
        return ones
    return torch.cat([mask, ones[:, mask.shape[1] :]], dim=1)


class Guided:
    """Mixed into a model's class, before it: ``class GuidedWhisper(Guided, WhisperForConditionalGeneration)``."""

    def prepare_inputs_for_generation(
        self, input_ids: torch.Tensor, decoder_guidance: Unconditional | None = None, **kwargs: Any
    ) -> Any:
        # The name begins with ``decoder_``, so generate does not hand the argument to the encoder.
        if decoder_guidance is not None:
            input_ids, kwargs = decoder_guidance.double(input_ids, kwargs)
        return super().prepare_inputs_for_generation(input_ids, **kwargs)  # type: ignore[misc]
