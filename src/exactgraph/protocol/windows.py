"""The windows of a protocol for a speech model: what its encoder hears, and the tokens that its decoder begins with."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from exactgraph.canonical import digest, read_json
from exactgraph.protocol.questions import Question
from exactgraph.runtime.load import DTYPES
from exactgraph.sources import windows

_LANGUAGE, _TASK = "en", "transcribe"


@dataclass(frozen=True)
class Window(Question):
    """One window. ``ids`` are the tokens that the decoder begins with.

    ``features``: log-mel features ``(1, mel bins, frames)`` in the model's dtype; ``heard``: SHA-256 of them as stored, in
    fp32. ``spoken``: the arguments that keep a multilingual model from guessing language and task.
    """

    features: torch.Tensor = field(compare=False, repr=False)
    heard: str
    spoken: dict[str, str] = field(hash=False)

    @property
    def digest(self) -> str:
        return digest([list(self.ids), self.heard])

    def inputs(self, device: torch.device) -> dict[str, Any]:
        # Whisper's generate goes on where a timestamp says that there is more to hear, and cuts what it returns at padding.
        # This makes it one call of transformers' own loop, whose sequence comes back whole: beginning, then all new tokens.
        return {"input_features": self.features.to(device), "force_unique_generate_call": True, **self.spoken}


def windows_of(model_dir: Path, name: str, dtype: str, new_tokens: int) -> list[Question]:
    """The windows of the set ``name`` in a model's folder, with features in ``dtype`` (``bf16``, ``fp16``, ``fp32``)."""
    begin, spoken = _beginning(read_json(model_dir / "generation_config.json"))
    return [
        Window(
            id=f"{name}/{index}",
            ids=begin,
            new_tokens=new_tokens,
            features=torch.from_numpy(features[None]).to(DTYPES[dtype]),
            heard=hashlib.sha256(features.tobytes()).hexdigest(),
            spoken=spoken,
        )
        for index, features in enumerate(windows.read(model_dir, name))
    ]


def _beginning(config: dict[str, Any]) -> tuple[tuple[int, ...], dict[str, str]]:
    """The decoder's first tokens under a ``generation_config.json``, and the arguments that make them so."""
    begin, spoken = [config["decoder_start_token_id"]], {}
    if config.get("is_multilingual"):
        begin += [config["lang_to_id"][f"<|{_LANGUAGE}|>"], config["task_to_id"][_TASK]]
        spoken = {"language": _LANGUAGE, "task": _TASK}
    if "no_timestamps_token_id" in config:
        begin.append(config["no_timestamps_token_id"])
    return tuple(begin), spoken
