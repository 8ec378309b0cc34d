"""One tiny model and what a sequence does to it: alone under eager, or with a session installed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from tests.runtime.decoder_models import make_of

from exactgraph.runtime.attention import preferred

_FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"attention_dropout": 0.1}),
    "llama-mha": ("Llama", {"num_key_value_heads": 4, "attention_bias": True, "tie_word_embeddings": True}),
    "mistral-window": ("Mistral", {"sliding_window": 16}),
    "qwen3": ("Qwen3", {}),
    "gemma2": ("Gemma2", {"sliding_window": 16, "attention_dropout": 0.1}),
}
_SMALL = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96, "vocab_size": 96}
WORDS = _SMALL["vocab_size"]
# A full window has a mask, and flash attention takes none.
_MASKED = ("mistral-window", "gemma2")


def pin_for(family: str, device: torch.device) -> str:
    """The attention backend that a baseline of ``family`` on ``device`` is recorded under."""
    if device.type != "cuda":
        return "default"
    return "math" if family in _MASKED else "flash"


class World:
    """``model``, ``generate`` as the user of this moment calls it, and a stack of what is to be undone.

    ``pin`` is the attention backend that eager runs under. Where a session is installed (``serialised``), it brings the pin
    itself. ``note`` is called after every call of ``generate``.
    """

    def __init__(self, family: str, device: torch.device) -> None:
        name, changes = _FAMILIES[family]
        self.model = make_of(name, device, **{**_SMALL, **changes})
        self.device = device
        self.pin = pin_for(family, device)
        self.adapted: Any = None
        self.undo = ExitStack()
        self.note: Callable[[], None] = lambda: None
        self.serialised = False

    def generate(self, **arguments: Any) -> Any:
        """``model.generate``, through the adapter's wrapper where there is one."""
        target = self.adapted or self.model
        try:
            if self.serialised:
                return target.generate(**arguments)
            with preferred(self.pin):
                return target.generate(**arguments)
        finally:
            self.note()

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits ``(rows, tokens, words)`` of a call by hand, which no session has to do with."""
        with preferred(self.pin):
            logits: torch.Tensor = self.model(input_ids=ids).logits
        return logits

    def prompt(self, tokens: int, seed: int, rows: int = 1) -> torch.Tensor:
        """Token IDs ``(rows, tokens)`` on the model's device of this moment; a default device is for the model's calls."""
        generator = torch.Generator("cpu").manual_seed(seed)
        return torch.randint(2, WORDS, (rows, tokens), generator=generator, device="cpu").to(self.model.device)
