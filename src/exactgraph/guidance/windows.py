"""Long inputs in windows: one after the other, where a window's prompt depends on what came before, or many at a time.

Both call ``model.generate`` and nothing else, so both run through whatever is installed in the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from transformers import LogitsProcessor, LogitsProcessorList
from transformers.models.whisper.generation_whisper import WhisperGenerationMixin

from exactgraph.guidance.device import OnDevice
from exactgraph.progress import Progress
from exactgraph.refusal import UserError

Inputs = dict[str, Any]


class Script(Protocol):
    """What a user's program knows of its windows. Tokens are int64 ``(1, tokens)``."""

    def prompt(self, index: int, kept: Sequence[torch.Tensor]) -> torch.Tensor:
        """The decoder's prompt of window ``index``, at least one token, from what was kept of the windows before."""

    def ends(self, index: int) -> Sequence[int]:
        """The ids that end window ``index``: also times beyond it, where it looks ahead. None for no end but the length."""

    def keep(self, index: int, generated: torch.Tensor) -> torch.Tensor:
        """``generated`` without what belongs to the windows before (looked back at) and after (looked ahead to)."""

    def again(self, index: int, generated: torch.Tensor, tries: int) -> bool:
        """Whether the window is to be tried again after ``tries`` tries."""


@dataclass
class Windows:
    """``model.generate`` over windows. ``arguments`` go to every call, with ``processors`` in their order."""

    model: Any
    script: Script
    processors: Sequence[LogitsProcessor] = ()
    arguments: dict[str, Any] = field(default_factory=dict)

    def sequential(self, inputs: Sequence[Inputs]) -> list[torch.Tensor]:
        """What is kept of each window. ``inputs``: the model's arguments for each, with a batch of one."""
        kept: list[torch.Tensor] = []
        with Progress("windows", len(inputs)) as progress:
            for index, window in enumerate(inputs):
                prompt = self.script.prompt(index, tuple(kept))
                tries = 0
                while True:
                    generated = self._generate(window, prompt, self.script.ends(index))
                    tries += 1
                    if not self.script.again(index, generated, tries):
                        break
                kept.append(self.script.keep(index, generated))
                progress.step(f"window {index}")
        return kept

    def parallel(self, inputs: Sequence[Inputs], batch: int, pad: int) -> list[torch.Tensor]:
        """The same for windows that do not depend on each other, up to ``batch`` in one call.

        Shorter prompts are padded on the left with ``pad``, and masked; so are answers that end early, on the right, and cut.
        Bits are those of a batch, so tokens may differ from :meth:`sequential`; those of a model that counts positions without
        regard to the mask (BART) will, where prompts are padded.
        """
        kept: list[torch.Tensor] = []
        with Progress("batches of windows", -(-len(inputs) // batch)) as progress:
            for indices in _batches(len(inputs), batch):
                ends = [tuple(self.script.ends(index)) for index in indices]
                if len(set(ends)) > 1:
                    raise UserError(f"Windows {indices[0]} to {indices[-1]} end with different ids, and one call has one set.")
                prompts = [self.script.prompt(index, ()) for index in indices]
                prompt, mask = _padded(prompts, pad)
                together = {name: torch.cat([inputs[index][name] for index in indices]) for name in inputs[indices[0]]}
                rows = self._generate({**together, "decoder_attention_mask": mask}, prompt, ends[0], pad_token_id=pad)
                for index, row in zip(indices, rows, strict=True):
                    kept.append(self.script.keep(index, _cut(row, ends[0])[None]))
                progress.step(f"windows {indices[0]} to {indices[-1]}")
        return kept

    def _generate(self, window: Inputs, prompt: torch.Tensor, ends: Sequence[int], **others: Any) -> torch.Tensor:
        for processor in self.processors:
            if isinstance(processor, OnDevice):
                # Another window, or the same one again: what it remembers is of the last try.
                processor.restart()
        answer = self.model.generate(
            **window,
            decoder_input_ids=prompt,
            eos_token_id=list(ends) or None,
            logits_processor=LogitsProcessorList(self.processors),
            return_dict_in_generate=False,
            **{**self.arguments, **others},
        )
        # Whisper leaves the prompt out.
        start = 0 if isinstance(self.model, WhisperGenerationMixin) else prompt.shape[1]
        generated: torch.Tensor = answer[:, start:]
        return generated


def _batches(windows: int, batch: int) -> Iterator[range]:
    for first in range(0, windows, batch):
        yield range(first, min(windows, first + batch))


def _padded(prompts: Sequence[torch.Tensor], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """All prompts as one batch, and its mask, both int64 ``(windows, tokens)``."""
    longest = max(prompt.shape[1] for prompt in prompts)
    ids = [torch.nn.functional.pad(prompt, (longest - prompt.shape[1], 0), value=pad) for prompt in prompts]
    masks = [torch.nn.functional.pad(torch.ones_like(prompt), (longest - prompt.shape[1], 0)) for prompt in prompts]
    return torch.cat(ids), torch.cat(masks)


def _cut(row: torch.Tensor, ends: Sequence[int]) -> torch.Tensor:
    """``row``, int64 ``(tokens,)``, up to its first end, which stays."""
    found = torch.isin(row, torch.tensor(ends, dtype=row.dtype, device=row.device)).nonzero()
    return row if not len(found) else row[: int(found[0]) + 1]
