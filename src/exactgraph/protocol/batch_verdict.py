"""The verdict on batches: a candidate against eager in the same process.

The frozen traces are of one prompt at a time. In a batch eager may take other kernels and choose other bits, so there the
reference is eager itself, asked beside the candidate. Pure JSON in and out, as in :mod:`exactgraph.protocol.compare`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from exactgraph.protocol.compare import Comparison, Difference, compare_sets, first_difference
from exactgraph.protocol.grades import TOKEN_IDENTICAL
from exactgraph.protocol.verdict import REJECTED, judge

Record = dict[str, Any]
"""What one size of batch showed: ``{"batch", "served", "why", "eager", "candidate"}``.

``served``: whether decode steps of it were captured as a whole; ``why`` some were not. ``eager`` and ``candidate`` map each
prompt set to the traces of the sequences of one batch.
"""


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
