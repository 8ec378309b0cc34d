"""Batches, several prompts in one call: which ones a protocol asks, and of what they are made. Free of torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from exactgraph.protocol.questions import Question


def batches_of(protocol: Mapping[str, Any]) -> tuple[int, ...]:
    """The numbers of sequences in one call that get graphs of their own, ascending, 1 among them."""
    return tuple(protocol.get("batches", (1,)))


def beyond_one(protocol: Mapping[str, Any]) -> list[int]:
    """The batches that are compared beside what every protocol asks."""
    return [batch for batch in batches_of(protocol) if batch > 1]


def sequence_name(prompt: str, index: int, batch: int) -> str:
    """The name of a prompt in a batch. It says which sequence it is, and so does every sentence on a difference."""
    return f"{prompt} (sequence {index} of a batch of {batch})"


def cut(asked: Sequence[Question], batch: int) -> list[Question]:
    """``batch`` questions of one length, that of the shortest prompt: the set's first ones, cut at their end.

    Where the set has fewer, they come again, each time turned by one token more: sequences that are alike would hide a
    candidate that mixes them up.
    """
    shortest = min(question.prompt_tokens for question in asked)
    rows = []
    for index in range(batch):
        turns, place = divmod(index, len(asked))
        ids = asked[place].ids[:shortest]
        turned = turns % shortest
        name = sequence_name(asked[place].id, index, batch)
        rows.append(replace(asked[place], id=name, ids=ids[turned:] + ids[:turned]))
    return rows
