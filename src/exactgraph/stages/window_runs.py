"""Windows of a protocol, encoded and decoded by each way and mode of ``protocol/window_ways.py``."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import torch

from exactgraph.canonical import digest
from exactgraph.capture import capturer_for
from exactgraph.guidance.windows import Windows
from exactgraph.protocol.questions import Questions
from exactgraph.protocol.trace import greedy
from exactgraph.protocol.window_ways import BATCHED, CAPTURED, PARALLEL, count, turned_name
from exactgraph.protocol.windows import Window
from exactgraph.refusal import Refusal
from exactgraph.runtime.attention import preferred
from exactgraph.runtime.precompute import CapturedEncoder, Precomputed, precompute
from exactgraph.runtime.session import Session

Tokens = list[list[int]]
_NO_STEPPER = "The candidate captures no whole steps."


class WindowRuns:
    """``sets``: the windows to ask, of each prompt set of ``asked``. ``limits``: what the protocol says of windows."""

    def __init__(self, session: Session, asked: Questions, limits: dict[str, int], attention: str) -> None:
        windows = {name: [question for question in found if isinstance(question, Window)] for name, found in asked.items()}
        self.sets = {name: filled(found, count(limits)) for name, found in windows.items()}
        self._session, self._limits, self._attention = session, limits, attention
        self._device: torch.device = session.model.device
        main = session.model.main_input_name
        self._inputs = {
            name: [{main: window.features.to(self._device)} for window in found] for name, found in self.sets.items()
        }
        self._encoder = CapturedEncoder(session.model, capturer_for(self._device))

    def eager(self, name: str) -> Tokens:
        """Eager's answer to each window of a set, asked one at a time."""
        return [
            window.answer(self._session.eager(**greedy(window, self._device), return_dict_in_generate=False))
            for window in self.sets[name]
        ]

    def encode(self, way: str, name: str) -> Precomputed:
        """The encoder's outputs of a set, as ``exactgraph.precompute`` would make them."""
        batch = self._limits["encoder_batch"] if way == BATCHED else 1
        encoder = self._encoder if way == CAPTURED else None
        with preferred(self._attention):
            return precompute(self._session.model, self._inputs[name], batch, self._limits["device_mib"] << 20, encoder)

    def decode(self, mode: str, name: str, outputs: Precomputed) -> tuple[Tokens, str | None]:
        """The candidate's answer to each window of a set from ``outputs``, and why steps ran eager, where some did."""
        windows = self.sets[name]
        inputs = [
            {**window.inputs(self._device), "encoder_outputs": states} for window, states in zip(windows, outputs, strict=True)
        ]
        batch = self._limits["parallel"] if mode == PARALLEL else 1
        asked = {"max_new_tokens": windows[0].new_tokens, "do_sample": False, "num_beams": 1}
        script = Whole(windows, self._device)
        fallbacks, eager = self._session.fallbacks.copy(), self._session.steps.eager
        # No answer ends early, and all windows begin alike: nothing is padded.
        answers = Windows(self._session.model, script, (), asked).independent(inputs, batch, pad=0)
        return [answer[0].tolist() for answer in answers], self._not_captured(fallbacks, eager)

    def _not_captured(self, fallbacks: Counter[Refusal], eager: int) -> str | None:
        """Why, since the session had ``fallbacks`` and ``eager`` steps."""
        refused = self._session.fallbacks - fallbacks
        if refused:
            return next(iter(refused)).sentence
        assert self._session.last is not None
        if self._session.last.steps is None:
            return _NO_STEPPER
        return self._session.steps.why if self._session.steps.eager > eager else None


def digests(outputs: Precomputed) -> list[str]:
    """SHA-256 of the hidden states of each window: the bytes of ``(1, positions, hidden)`` in the model's dtype."""
    return [hashlib.sha256(states[0].cpu().contiguous().view(torch.uint8).numpy().tobytes()).hexdigest() for states in outputs]


def filled(asked: Sequence[Window], number: int) -> list[Window]:
    """``number`` windows: the set's first ones, and where it has fewer the same ones again, each time turned further in time.

    Windows that are alike would hide that two of them were mixed up.
    """
    turns = -(-number // len(asked))
    return [_turned(asked[index % len(asked)], index // len(asked), turns) for index in range(number)]


def _turned(window: Window, turn: int, turns: int) -> Window:
    if not turn:
        return window
    features = window.features.roll(-(window.features.shape[-1] * turn // turns), dims=-1)
    heard = digest([window.heard, turn, turns])
    return replace(window, id=turned_name(window.id, turn, turns), features=features, heard=heard)


class Whole:
    """The script of windows that do not depend on each other: no end but their length, everything kept that is generated."""

    def __init__(self, windows: Sequence[Window], device: torch.device) -> None:
        self._prompts = [torch.tensor([window.ids], dtype=torch.int64, device=device) for window in windows]

    def prompt(self, index: int, kept: Sequence[torch.Tensor]) -> torch.Tensor:
        return self._prompts[index]

    def ends(self, index: int) -> Sequence[int]:
        return ()

    def keep(self, index: int, generated: torch.Tensor) -> torch.Tensor:
        return generated

    def again(self, index: int, generated: torch.Tensor, tries: int) -> bool:
        return False
