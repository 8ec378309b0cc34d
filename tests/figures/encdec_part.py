"""What every part of the figures of ``encdec-step`` is given: a speech model, windows, sizes, and sessions under one pin."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from figure_parts import opened

from exactgraph.candidates.base import Context
from exactgraph.capture import capturer_for
from exactgraph.protocol.questions import Question, context_of
from exactgraph.protocol.tasks import stop_at_length
from exactgraph.protocol.windows import Window, windows_of
from exactgraph.runtime.load import default_device, load_model
from exactgraph.runtime.session import Session
from exactgraph.sources.recordings import CUTS

_SHIFT = 7  # frames; the encoder hears two as one position


@dataclass(frozen=True)
class Sizes:
    """Counts of tokens (``tokens``, ``short``, ``long`` of an answer) and of windows (the others)."""

    tokens: int
    short: int
    long: int
    windows: int
    encoded: int
    batches: tuple[int, int]


class Part:
    """A loaded model, its windows, and where answers of other parts lie."""

    def __init__(self, folder: Path, shared: Path) -> None:
        self.shared = shared
        self.device = default_device()
        self.attention = "flash" if self.device.type == "cuda" else "default"
        self.model = load_model(folder, precision_of(self.device), self.device)
        stop_at_length(self.model)
        self.sizes = _sizes(self.model)
        self.windows = windows(folder, precision_of(self.device), self.sizes, self.model)
        self.asked: dict[str, list[Question]] = {"greedy": [*self.windows[: self.sizes.windows]]}
        self.context = Context(capturer_for(self.device), 512, self.sizes.tokens, self.sizes.long)

    @contextmanager
    def session(self, name: str = "encdec-step") -> Iterator[Session]:
        planning = replace(self.context, capturer=capturer_for(self.device))
        with opened(self.model, name, planning, self.context, self.attention) as (session, _):
            yield session

    def inputs(self, count: int) -> list[dict[str, Any]]:
        """The first windows as arguments of ``generate``, on the device."""
        return [{"input_features": window.features.to(self.device)} for window in self.windows[:count]]

    def generator(self) -> torch.Tensor:
        """The state of the generator that sampling draws from."""
        return torch.cuda.get_rng_state() if self.device.type == "cuda" else torch.get_rng_state()


def precision_of(device: torch.device) -> str:
    return "bf16" if device.type == "cuda" else "fp32"


def same_bits(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Whether two tensors of one dtype have one shape and the same bits."""
    return ours.shape == theirs.shape and torch.equal(*(each.contiguous().view(torch.uint8) for each in (ours, theirs)))


def _sizes(model: Any) -> Sizes:
    positions = context_of(model)
    assert positions is not None
    if model.device.type == "cpu":
        return Sizes(tokens=20, short=16, long=positions - 8, windows=4, encoded=6, batches=(2, 6))
    # An eager step of tiny.en is short; its answers pass two buckets' ends, those of larger models only in the long answer.
    tokens = 300 if positions < 1000 else 64
    return Sizes(tokens=tokens, short=40, long=min(1100, positions - 8), windows=16, encoded=64, batches=(16, 64))


def windows(folder: Path, precision: str, sizes: Sizes, model: Any) -> list[Window]:
    """Windows of which no two are alike: those of the model's folder, and then the same ones shifted in time."""
    stored = [window for name in CUTS for window in windows_of(folder, name, precision, sizes.tokens, model)]
    made = []
    for index in range(max(sizes.windows, sizes.encoded)):
        window, times = stored[index % len(stored)], index // len(stored)
        assert isinstance(window, Window)
        made.append(_shifted(window, times * _SHIFT) if times else window)
    return made


def _shifted(window: Window, frames: int) -> Window:
    features = window.features.roll(frames, dims=-1)
    heard = hashlib.sha256(features.float().numpy().tobytes()).hexdigest()
    return replace(window, id=f"{window.id}+{frames}", features=features, heard=heard)
