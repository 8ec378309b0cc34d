"""The prompts of a protocol for one model: token IDs, texts for an encoder, or windows of audio."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exactgraph.canonical import digest, read_json
from exactgraph.protocol.prompts import encode
from exactgraph.protocol.tasks import transcribes
from exactgraph.refusal import UserError

if TYPE_CHECKING:
    import torch

Questions = dict[str, list["Question"]]


@dataclass(frozen=True)
class Question:
    """One prompt: ``ids`` are the token IDs that the decoder begins with, ``new_tokens`` how many to generate."""

    id: str
    ids: tuple[int, ...]
    new_tokens: int

    @property
    def digest(self) -> str:
        return digest(list(self.ids))

    @property
    def prompt_tokens(self) -> int:
        return len(self.ids)

    @property
    def final_length(self) -> int:
        """Tokens in the longest sequence that a forward pass sees: the last token is chosen, not fed."""
        return self.prompt_tokens + self.new_tokens - 1

    def inputs(self, device: torch.device) -> dict[str, Any]:
        """The arguments of ``generate`` that put this question."""
        import torch

        ids = torch.tensor([self.ids], dtype=torch.int64, device=device)
        return {"inputs": ids, "attention_mask": torch.ones_like(ids)}

    def answer(self, sequences: torch.Tensor) -> list[int]:
        """The generated tokens of what ``generate`` returned: token IDs of shape ``(1, prompt and new tokens)``."""
        tokens: list[int] = sequences[0, self.prompt_tokens :].tolist()
        return tokens


def questions(protocol: dict[str, Any], model_dir: Path, tokenizer: Any | None, model: Any) -> Questions:
    """The prompt sets of ``protocol`` for ``model``.

    Windows, for a protocol that asks for transcripts, lie in the model's folder. ``tokenizer`` is for texts; it is None for a
    model whose folder brings seeded token IDs instead.
    """
    sets: Questions = {}
    for name, asked in protocol["sets"].items():
        made = _questions(protocol, model_dir, tokenizer, model, name)
        if len(made) < len(asked["prompts"]):
            raise UserError(
                f"{model_dir} has {len(made)} prompts in set {name!r}; the protocol asks for {len(asked['prompts'])}."
            )
        sets[name] = list(made[: len(asked["prompts"])])
    return sets


def _questions(protocol: dict[str, Any], model_dir: Path, tokenizer: Any | None, model: Any, name: str) -> Sequence[Question]:
    """All that there is for one set."""
    asked = protocol["sets"][name]
    if transcribes(protocol):
        from exactgraph.protocol.windows import windows_of

        return windows_of(model_dir, name, protocol["dtype"], asked["new_tokens"], model)
    ids = _seeded(model_dir, name) if tokenizer is None else [encode(tokenizer, p["text"]) for p in asked["prompts"]]
    named = {f"{name}/{index}": tuple(prompt) for index, prompt in enumerate(ids)}
    if model.config.is_encoder_decoder:
        from exactgraph.protocol.passages import Passage, start_of

        return [Passage(id, (start_of(model),), asked["new_tokens"], prompt) for id, prompt in named.items()]
    return [Question(id, prompt, asked["new_tokens"]) for id, prompt in named.items()]


def context_of(model: Any) -> int | None:
    """The longest sequence, in tokens, that ``model`` (or its decoder) was made for, where it says so."""
    config = model.config.get_text_config()
    names = ("max_target_positions", "max_position_embeddings")
    return next((getattr(config, name) for name in names if getattr(config, name, None) is not None), None)


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
