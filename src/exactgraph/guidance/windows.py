"""Long inputs in windows: one after the other, where a window's prompt depends on what came before, or many at a time.

All ways call ``model.generate`` and nothing else to decode, so they run through whatever is installed in the model.
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
from exactgraph.runtime.ahead import ahead_of, precompute
from exactgraph.runtime.rows import Inputs, alike, cut, padded, together


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
                kept.append(self._alone(index, window, self.script.prompt(index, tuple(kept))))
                progress.step(f"window {index}")
        return kept

    def run(self, inputs: Sequence[Inputs], pad: int) -> list[torch.Tensor]:
        """What is kept of windows that do not depend on each other, by the way that is confirmed for the model here.

        The encoder's outputs come first, see :func:`exactgraph.precompute`; then :meth:`independent` with the confirmed number
        of windows in one call, or one after the other where none is confirmed to be exact and faster. Only greedy answers
        were compared, so sampling and beams go one after the other.
        """
        ahead = ahead_of(self.model)
        batch = ahead.in_one_call() if ahead is not None and self._greedy() else 1
        return self.independent(_Given(inputs, precompute(self.model, inputs)), batch, pad)

    def independent(self, inputs: Sequence[Inputs], batch: int, pad: int) -> list[torch.Tensor]:
        """The same, ``batch`` windows in one call; 1 for one after the other.

        What is left over of the last batch, and windows whose arguments or ends differ, or whose prompts have several lengths,
        go one after the other: eager's kernels depend on the shape of a call, and only whole batches without padding were
        compared.
        Windows that are to be tried again are tried alone.
        """
        kept: list[torch.Tensor] = []
        with Progress("windows", len(inputs)) as progress:
            for indices in _batches(len(inputs), batch):
                windows = [inputs[index] for index in indices]
                prompts = [self.script.prompt(index, ()) for index in indices]
                ends = [tuple(self.script.ends(index)) for index in indices]
                unpadded = len({prompt.shape[1] for prompt in prompts}) == len(set(ends)) == 1
                answers: Sequence[torch.Tensor | None] = [None] * len(indices)
                if unpadded and len(indices) == batch > 1 and alike(windows):
                    answers = self._rows(windows, prompts, ends[0], pad)
                for index, window, prompt, answer in zip(indices, windows, prompts, answers, strict=True):
                    kept.append(self._alone(index, window, prompt, answer))
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
                rows = self._rows([inputs[index] for index in indices], prompts, ends[0], pad)
                kept += [self.script.keep(index, row) for index, row in zip(indices, rows, strict=True)]
                progress.step(f"windows {indices[0]} to {indices[-1]}")
        return kept

    def _alone(self, index: int, window: Inputs, prompt: torch.Tensor, generated: torch.Tensor | None = None) -> torch.Tensor:
        """What is kept of a window by itself; ``generated``: its first try, where that was made with others."""
        tries = 0
        while True:
            if generated is None or tries:
                generated = self._generate(window, prompt, self.script.ends(index))
            tries += 1
            if not self.script.again(index, generated, tries):
                return self.script.keep(index, generated)

    def _rows(
        self, windows: Sequence[Inputs], prompts: Sequence[torch.Tensor], ends: Sequence[int], pad: int
    ) -> list[torch.Tensor]:
        """What one call generates for each of ``windows``, int64 ``(1, tokens)``, up to its end."""
        prompt, mask = padded(prompts, pad)
        # Not every model of a user's own takes a mask, and one that masks nothing changes nothing.
        unpadded = len({one.shape[1] for one in prompts}) == 1
        masked = {} if unpadded else {"decoder_attention_mask": mask}
        rows = self._generate({**together(windows), **masked}, prompt, ends, pad_token_id=pad)
        return [cut(row, ends)[None] for row in rows]

    def _greedy(self) -> bool:
        asked = {**vars(self.model.generation_config), **self.arguments}
        return not asked.get("do_sample") and (asked.get("num_beams") or 1) == 1

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
        # Whisper leaves the prompt out, unless its generate is to be one call of transformers' own loop.
        whole = {**self.arguments, **window}.get("force_unique_generate_call")
        start = 0 if isinstance(self.model, WhisperGenerationMixin) and not whole else prompt.shape[1]
        generated: torch.Tensor = answer[:, start:]
        return generated


class _Given(Sequence[Inputs]):
    """``inputs``, each with the encoder's output for it, which comes to the device when the window does."""

    def __init__(self, inputs: Sequence[Inputs], outputs: Sequence[Any]) -> None:
        self._inputs, self._outputs = inputs, outputs

    def __len__(self) -> int:
        return len(self._inputs)

    def __getitem__(self, index: Any) -> Any:
        return {**self._inputs[index], "encoder_outputs": self._outputs[index]}


def _batches(windows: int, batch: int) -> Iterator[range]:
    for first in range(0, windows, batch):
        yield range(first, min(windows, first + batch))
