"""Prompts of the pretended package."""

from __future__ import annotations

from pathlib import Path

from exactgraph.canonical import read_json

SETS = ("heldout", "confirm", "long")


def load(name: str) -> list[dict[str, str]]:
    texts = read_json(Path(__file__).with_name("prompts.json"))[name]
    return [{"id": f"{name}/{index}", "text": text} for index, text in enumerate(texts)]
