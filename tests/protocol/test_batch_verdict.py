"""Prompts of a set as one batch, and the verdict on batches."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from exactgraph.protocol.batch_verdict import first_of_all, judge_all
from exactgraph.protocol.batches import batches_of, beyond_one, cut
from exactgraph.protocol.compare import compare_sets
from exactgraph.protocol.grades import BIT_IDENTICAL, TOKEN_IDENTICAL
from exactgraph.protocol.questions import Question

ASKED = [Question("long/0", (1, 2, 3, 4), 9), Question("long/1", (5, 6, 7), 9)]


@pytest.mark.parametrize(
    ("batch", "rows"),
    [
        (2, [(1, 2, 3), (5, 6, 7)]),
        (3, [(1, 2, 3), (5, 6, 7), (2, 3, 1)]),
        (6, [(1, 2, 3), (5, 6, 7), (2, 3, 1), (6, 7, 5), (3, 1, 2), (7, 5, 6)]),
    ],
)
def test_a_batch_has_one_length_and_no_two_sequences_alike(batch: int, rows: list[tuple[int, ...]]) -> None:
    made = cut(ASKED, batch)
    assert [row.ids for row in made] == rows
    assert {row.new_tokens for row in made} == {9}
    assert made[1].id == f"long/1 (sequence 1 of a batch of {batch})"
    assert len({row.id for row in made}) == batch


def test_a_protocol_that_names_none_asks_one_prompt_at_a_time() -> None:
    assert batches_of({}) == (1,)
    assert beyond_one({}) == []
    assert beyond_one({"batches": [1, 2, 8]}) == [2, 8]


def trace(name: str) -> dict[str, Any]:
    return {"prompt": name, "prompt_digest": name, "tokens": [3, 4], "logits": ["a", "b"], "margins": [1.0, 2.0]}


def record(batch: int, field: str | None = None, value: Any = None) -> dict[str, Any]:
    """A batch of two sequences; the second's last ``field`` is ``value`` in the candidate's."""
    eager = {"heldout": [trace(f"{batch}/0"), trace(f"{batch}/1")]}
    candidate = copy.deepcopy(eager)
    if field is not None:
        candidate["heldout"][1][field][1] = value
    return {"batch": batch, "served": True, "why": None, "eager": eager, "candidate": candidate}


def judged(*records: dict[str, Any], claims: str = BIT_IDENTICAL) -> tuple[str, str | None]:
    alone = compare_sets({"heldout": [trace("0")]}, {"heldout": [trace("0")]})
    verdict = judge_all(alone, records, claims)
    return verdict["status"], verdict["grade"]


def test_all_batches_decide() -> None:
    other_bits, other_token = record(4, "logits", "c"), record(4, "tokens", 7)
    assert judged(record(2), record(4)) == ("exact", BIT_IDENTICAL)
    assert judged(record(2), other_token) == ("rejected", None)
    assert judged(record(2), other_bits) == ("rejected", TOKEN_IDENTICAL)
    assert judged(other_bits, record(8), claims=TOKEN_IDENTICAL) == ("exact", TOKEN_IDENTICAL)
    assert judged(other_bits, other_token, claims=TOKEN_IDENTICAL) == ("rejected", None)


def test_the_difference_to_name_is_that_of_the_first_batch_with_one() -> None:
    alone = compare_sets({"heldout": [trace("0")]}, {"heldout": [trace("0")]})
    assert first_of_all(alone, [record(2)]) is None
    found = first_of_all(alone, [record(2), record(4, "tokens", 7), record(8, "tokens", 7)])
    assert found is not None
    assert (found["prompt"], found["step"], found["got"]) == ("4/1", 1, 7)
