"""What a record shows of batches, found again from the traces of eager and of the candidate that lie in it."""

from __future__ import annotations

from itertools import cycle
from typing import Any

from exactgraph.protocol.batch_verdict import Record, compare_batch
from exactgraph.protocol.batches import beyond_one, sequence_name
from exactgraph.protocol.compare import Comparison
from exactgraph.protocol.verdict import EXACT, judge
from exactgraph.receipts.evidence import Evidence, Inconsistent


def batches_in(evidence: Evidence, record: dict[str, Any], alone: Comparison, what: str) -> list[Record]:
    """The batches of a validation or an attempt, which is ``what``; ``alone`` compares its single prompts.

    Batches are asked of what is exact on single prompts, each that the protocol names, and of nothing else. Raises
    :class:`Inconsistent` where it is otherwise, or where they are not batches of the prompts that the record answers.
    """
    exact = judge(alone, evidence.plan(record["candidate"])["claims"])["status"] == EXACT
    wanted = beyond_one(evidence.protocol) if exact else []
    records: list[Record] = record.get("batches", [])
    if [found["batch"] for found in records] != wanted:
        raise Inconsistent(f"{what} does not have the batches that it must ({', '.join(map(str, wanted)) or 'none'}).")
    for found in records:
        if not found["served"] and not found["why"]:
            raise Inconsistent(f"{what} does not say why batches of {found['batch']} ran eager.")
        if not set(found["eager"]) == set(found["candidate"]) == set(record["sets"]):
            raise Inconsistent(f"{what} does not ask all its prompt sets in batches of {found['batch']}.")
        for name in found["eager"]:
            _check_asked(evidence, found, name, what)
        try:
            compare_batch(found)
        except ValueError as error:
            raise Inconsistent(f"{what} cannot be compared with eager in batches of {found['batch']}: {error}.") from error
    return records


def _check_asked(evidence: Evidence, record: Record, name: str, what: str) -> None:
    """Eager answered one batch of the frozen prompts of the set ``name``, cut to the shortest, at full length."""
    batch, frozen, traces = record["batch"], evidence.frozen["sets"][name], record["eager"][name]
    where = f"{what}, set {name}, batch of {batch}:"
    names = [sequence_name(trace["prompt"], index, batch) for index, trace in zip(range(batch), cycle(frozen), strict=False)]
    if [trace["prompt"] for trace in traces] != names:
        raise Inconsistent(f"{where} the sequences are not the prompts of the set in their order.")
    shortest = min(trace["prompt_tokens"] for trace in frozen)
    for trace, whole in zip(traces, frozen, strict=False):
        uncut = whole["prompt_tokens"] == shortest
        if trace["prompt_tokens"] != shortest or (uncut and trace["prompt_digest"] != whole["prompt_digest"]):
            raise Inconsistent(f"{where} {trace['prompt']} is not the frozen prompt, cut to {shortest} tokens.")
    asked = evidence.protocol["sets"][name]["new_tokens"]
    for trace in traces:
        if not len(trace["tokens"]) == len(trace["logits"]) == len(trace["margins"]) == asked:
            raise Inconsistent(f"{where} eager's answer to {trace['prompt']} does not have the length that was asked for.")


def summary(records: list[Record]) -> list[dict[str, Any]]:
    """What a receipt says of each batch."""
    return [
        {"batch": found["batch"], "served": found["served"], "why": found["why"], "comparison": compare_batch(found)}
        for found in records
    ]
