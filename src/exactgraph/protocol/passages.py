"""Texts for an encoder-decoder: its encoder reads them, and its decoder begins with a token of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from exactgraph.canonical import digest
from exactgraph.protocol.questions import Question
from exactgraph.refusal import UserError


@dataclass(frozen=True)
class Passage(Question):
    """One text. ``ids`` are the tokens that the decoder begins with, ``read`` the token IDs that the encoder reads."""

    read: tuple[int, ...]

    @property
    def digest(self) -> str:
        return digest([list(self.ids), list(self.read)])

    def inputs(self, device: torch.device) -> dict[str, Any]:
        ids = torch.tensor([self.read], dtype=torch.int64, device=device)
        return {"inputs": ids, "attention_mask": torch.ones_like(ids)}


def start_of(model: Any) -> int:
    """The token that the decoder of ``model`` begins with, as ``generate`` chooses it."""
    config = model.generation_config
    start = config.bos_token_id if config.decoder_start_token_id is None else config.decoder_start_token_id
    if isinstance(start, list):
        start = start[0]
    if start is None:
        raise UserError(
            f"{type(model).__name__} does not say what its decoder begins with: give it a decoder_start_token_id in its "
            f"generation_config.json."
        )
    return int(start)
