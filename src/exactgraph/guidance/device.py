"""Logits processors that the host never waits for.

A plain processor of transformers is given all tokens so far, a tensor that grows in every step, and may read what it likes.
A :class:`DeviceProcessor` keeps what it has to know of them in buffers of a fixed shape, and reads and writes those on the
device alone, so that its work can be queued, or captured, without the host. :class:`OnDevice` makes a processor for
``generate`` of any number of them; the user's plain processors go beside it, in the order in which they are listed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from transformers import LogitsProcessor

from exactgraph.capture.buffers import buffer
from exactgraph.capture.graph import Capturer, Graph


@runtime_checkable
class DeviceProcessor(Protocol):
    """Its state is that after some tokens. No method reads a value on the host."""

    def begin(self, prompt: torch.Tensor) -> None:
        """Forget everything: a sequence begins, or is tried again, with ``prompt``, int64 ``(rows, tokens)``."""

    def advance(self, token: torch.Tensor) -> None:
        """``token``, int64 ``(rows,)``, was chosen. Writes buffers in place, and nothing else."""

    def apply(self, scores: torch.Tensor) -> torch.Tensor:
        """New scores, fp32 ``(rows, vocabulary)``, from ``scores``; guidance takes several rows for one. Changes no state."""


class OnDevice(LogitsProcessor):
    """``processors`` one after the other, as one processor for ``generate``.

    A call with one more token than the one before goes on; any other begins anew. Whoever tries again a sequence whose prompt
    is just one token longer than the last try says so by :meth:`restart`. With a ``capturer`` their work is captured in two
    graphs, one for scores and one for tokens, for as long as shapes stay the same.
    """

    def __init__(self, processors: Sequence[DeviceProcessor], capturer: Capturer | None = None) -> None:
        self.processors = tuple(processors)
        self._capturer = capturer
        self._length: int | None = None
        self._rows = 0
        self._captured: _Captured | None = None

    def restart(self) -> None:
        """The next call begins a sequence, whatever its length."""
        self._length = None

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """``input_ids``: int64 ``(rows, tokens)``; ``scores``: fp32 ``(rows or several for one, vocabulary)``."""
        rows, length = input_ids.shape
        goes_on = self._length is not None and (rows, length) == (self._rows, self._length + 1)
        self._rows, self._length = rows, length
        if not goes_on:
            for processor in self.processors:
                processor.begin(input_ids)
        if self._capturer is None:
            if goes_on:
                self._advance(input_ids[:, -1])
            return self._apply(scores)
        if not goes_on:
            return self._apply(scores)
        if self._captured is None or not self._captured.fits(rows, scores):
            # Warm-ups advance the state, so it is found again from all the tokens.
            self._captured = _Captured(self, self._capturer, rows, scores)
            for processor in self.processors:
                processor.begin(input_ids)
            return self._captured.apply(scores)
        self._captured.advance(input_ids[:, -1])
        return self._captured.apply(scores)

    def _advance(self, token: torch.Tensor) -> None:
        for processor in self.processors:
            processor.advance(token)

    def _apply(self, scores: torch.Tensor) -> torch.Tensor:
        for processor in self.processors:
            scores = processor.apply(scores)
        return scores


class _Captured:
    """The work of processors in graphs, over a static token ``(rows,)`` and static scores."""

    def __init__(self, processors: OnDevice, capturer: Capturer, rows: int, scores: torch.Tensor) -> None:
        self._token = buffer((rows,), torch.int64, scores.device).zero_()
        self._scores = buffer(tuple(scores.shape), scores.dtype, scores.device).copy_(scores)

        def advance() -> tuple[torch.Tensor, ...]:
            processors._advance(self._token)
            return ()

        def apply() -> tuple[torch.Tensor, ...]:
            return (processors._apply(self._scores),)

        self._advance: Graph = capturer.capture(advance)
        self._apply: Graph = capturer.capture(apply)

    def fits(self, rows: int, scores: torch.Tensor) -> bool:
        return (rows, scores.shape, scores.dtype) == (self._token.shape[0], self._scores.shape, self._scores.dtype)

    def advance(self, token: torch.Tensor) -> None:
        self._token.copy_(token)
        self._advance.replay()

    def apply(self, scores: torch.Tensor) -> torch.Tensor:
        self._scores.copy_(scores)
        self._apply.replay()
        return self._apply.outputs[0].clone()
