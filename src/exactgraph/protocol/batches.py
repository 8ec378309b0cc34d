"""Batches: several prompts in one call, through eager and through a candidate in the same process.

The frozen traces are of one prompt at a time. In a batch eager may take other kernels and choose other bits, so there the
reference is eager itself, asked beside the candidate. Pure JSON, apart from the questions; nothing here needs torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from exactgraph.protocol.compare import Comparison, Difference, compare_sets, first_difference
from exactgraph.protocol.grades import TOKEN_IDENTICAL
from exactgraph.protocol.questions import Question
from exactgraph.protocol.verdict import REJECTED, judge

Record = dict[str, Any]
"""What one size of batch showed: ``{"batch", "served", "why", "eager", "candidate"}``.

``served``: whether decode steps of it were captured as a whole; ``why`` some were not. ``eager`` and ``candidate`` map each
prompt set to the traces of the sequences of one batch.
"""


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


def compare_batch(record: Record) -> Comparison:
    """The candidate's traces against eager's, sequence by sequence."""
    return compare_sets(record["eager"], record["candidate"])


def judge_all(alone: Comparison, records: Iterable[Record], claims: str) -> dict[str, Any]:
    """The verdict on one prompt at a time and on all batches: the first rejection, else the lowest grade."""
    judged = [judge(comparison, claims) for comparison in (alone, *map(compare_batch, records))]
    return min(judged, key=lambda verdict: (verdict["status"] != REJECTED, verdict["grade"] != TOKEN_IDENTICAL))


def first_of_all(alone: Comparison, records: Iterable[Record]) -> Difference | None:
    """The difference to name: that of one prompt at a time, else that of the first batch that has one."""
    differences = map(first_difference, (alone, *map(compare_batch, records)))
    return next((difference for difference in differences if difference is not None), None)
