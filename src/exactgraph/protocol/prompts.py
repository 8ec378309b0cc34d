"""The prompt sets that ship with the project: ``heldout`` for validation, ``confirm`` and ``long`` for confirmation only.

Texts are plain user messages; where a model has a chat template they are rendered through it, else they are tokenised as
they stand. Torch-free: the workflow reads the texts when it computes the protocol digest.
"""

from __future__ import annotations

from importlib import resources
from typing import Any

import orjson

SETS = ("heldout", "confirm", "long")


def load(name: str) -> list[dict[str, str]]:
    """The prompts of a set as ``[{"id": "heldout/0", "text": …}, …]``."""
    texts = orjson.loads(resources.files("exactgraph.protocol").joinpath("prompts.json").read_bytes())[name]
    return [{"id": f"{name}/{index}", "text": text} for index, text in enumerate(texts)]


def encode(tokenizer: Any, text: str) -> list[int]:
    """Token IDs of one prompt. A chat template writes its own special tokens, so none are added to what it renders."""
    if getattr(tokenizer, "chat_template", None):
        messages = [{"role": "user", "content": text}]
        rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return list(tokenizer(rendered, add_special_tokens=False)["input_ids"])
    return list(tokenizer(text)["input_ids"])
