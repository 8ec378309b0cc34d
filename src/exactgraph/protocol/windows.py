"""The windows of a protocol for a speech model: what its encoder hears, and the tokens that its decoder begins with."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers.models.whisper.generation_whisper import WhisperGenerationMixin

from exactgraph.canonical import digest, read_json
from exactgraph.protocol.passages import start_of
from exactgraph.protocol.questions import Question
from exactgraph.runtime.load import DTYPES
from exactgraph.sources import windows

_LANGUAGE, _TASK = "en", "transcribe"


@dataclass(frozen=True)
class Window(Question):
    """One window. ``ids`` are the tokens that the decoder begins with.

    ``features``: what the encoder hears, with a batch of one in front, in the model's dtype: log-mel features ``(1, mel bins,
    frames)`` of a Whisper; a model of the user's own may hear others under the name ``main``. ``heard``: SHA-256 of them as
    stored, in fp32. ``besides``: further arguments of ``generate``.
    """

    features: torch.Tensor = field(compare=False, repr=False)
    heard: str
    besides: dict[str, Any] = field(hash=False)
    main: str = "input_features"

    @property
    def digest(self) -> str:
        return digest([list(self.ids), self.heard])

    def inputs(self, device: torch.device) -> dict[str, Any]:
        return {self.main: self.features.to(device), **self.besides}


def windows_of(model_dir: Path, name: str, dtype: str, new_tokens: int, model: Any) -> list[Question]:
    """The windows of the set ``name`` in the folder of ``model``; features in ``dtype`` (``bf16``, ``fp16``, ``fp32``)."""
    if isinstance(model, WhisperGenerationMixin):
        begin, besides = _beginning(read_json(model_dir / "generation_config.json"))
    else:
        begin, besides = (start_of(model),), {}
    return [
        Window(
            id=f"{name}/{index}",
            ids=begin,
            new_tokens=new_tokens,
            features=torch.from_numpy(features[None]).to(DTYPES[dtype]),
            heard=hashlib.sha256(features.tobytes()).hexdigest(),
            besides=besides,
            main=model.main_input_name,
        )
        for index, features in enumerate(windows.read(model_dir, name))
    ]


def _beginning(config: dict[str, Any]) -> tuple[tuple[int, ...], dict[str, Any]]:
    """The first tokens of Whisper's decoder under a ``generation_config.json``, and the arguments that make them so."""
    begin = [config["decoder_start_token_id"]]
    # Whisper's generate goes on where a timestamp says that there is more to hear, and cuts what it returns at padding.
    # This makes it one call of transformers' own loop, whose sequence comes back whole: beginning, then all new tokens.
    besides: dict[str, Any] = {"force_unique_generate_call": True}
    if config.get("is_multilingual"):
        begin += [config["lang_to_id"][f"<|{_LANGUAGE}|>"], config["task_to_id"][_TASK]]
        # Or a multilingual model guesses both.
        besides |= {"language": _LANGUAGE, "task": _TASK}
    if "no_timestamps_token_id" in config:
        begin.append(config["no_timestamps_token_id"])
    return tuple(begin), besides
