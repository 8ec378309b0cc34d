"""The prompts of a protocol as token IDs for one model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exactgraph.canonical import digest, read_json
from exactgraph.protocol.prompts import encode
from exactgraph.refusal import UserError

Questions = dict[str, list["Question"]]


@dataclass(frozen=True)
class Question:
    """One prompt: ``ids`` are token IDs, ``new_tokens`` how many to generate."""

    id: str
    ids: tuple[int, ...]
    new_tokens: int

    @property
    def digest(self) -> str:
        return digest(list(self.ids))

    @property
    def final_length(self) -> int:
        """Tokens in the longest sequence that a forward pass sees: the last token is chosen, not fed."""
        return len(self.ids) + self.new_tokens - 1


def questions(protocol: dict[str, Any], model_dir: Path, tokenizer: Any | None) -> Questions:
    """The prompt sets of ``protocol``; ``tokenizer`` is None for a model whose folder brings seeded token IDs instead."""
    sets: Questions = {}
    for name, asked in protocol["sets"].items():
        ids = _seeded(model_dir, name) if tokenizer is None else [encode(tokenizer, p["text"]) for p in asked["prompts"]]
        if len(ids) < len(asked["prompts"]):
            raise UserError(
                f"{model_dir} has {len(ids)} prompts in set {name!r}; the protocol asks for {len(asked['prompts'])}."
            )
        sets[name] = [
            Question(f"{name}/{index}", tuple(prompt), asked["new_tokens"])
            for index, prompt in enumerate(ids[: len(asked["prompts"])])
        ]
    return sets


def check_context(sets: Questions, context: int | None) -> None:
    """Refuse questions that a model of ``context`` tokens (None: no limit is known) was not made for, and empty ones."""
    for question in (question for asked in sets.values() for question in asked):
        if not question.ids:
            raise UserError(f"Prompt {question.id} has no tokens for this model: give it a text in prompts.json.")
        if context is not None and question.final_length > context:
            raise UserError(
                f"Prompt {question.id} has {len(question.ids)} tokens and {question.new_tokens} are to be generated: more "
                f"than the model's context of {context}. Lower new_tokens or long_run in config.yaml, or choose another model."
            )


def _seeded(model_dir: Path, name: str) -> list[list[int]]:
    prompts: dict[str, list[list[int]]] = read_json(model_dir / "prompts.json")
    return prompts[name]


def longest(sets: Questions, *names: str) -> int:
    """The longest sequence, in tokens, that a forward pass sees over the named sets."""
    return max(question.final_length for name in names for question in sets[name])
