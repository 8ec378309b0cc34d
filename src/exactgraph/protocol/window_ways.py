"""What a protocol asks about windows of a speech model, and what a record of it shows. Pure JSON in and out, free of torch.

A *way* is how encoder outputs come about before the first token: eager's encoder one window at a time, that encoder captured,
or eager's in batches. A *mode* is how windows are decoded: one after the other, or several in one call. All are held against
eager itself, asked about one window at a time in the same process.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from exactgraph.protocol.grades import BIT_IDENTICAL, TOKEN_IDENTICAL

EAGER, CAPTURED, BATCHED = "eager", "captured", "batched"
SEQUENTIAL, PARALLEL = "sequential", "parallel"

Record = dict[str, Any]
"""``{"sets", "refused", "not_captured", "seconds"}``, of a validation or of an attempt at confirmation.

``sets`` maps each prompt set to ``windows`` (``id`` and ``digest`` of each), ``expected`` (eager's tokens of each), ``states``
(SHA-256 of each window's hidden states, by way) and ``tokens`` (of each window, by way and mode; ways with the bits of
eager's states share eager's). ``refused`` says why a way or mode is missing, ``not_captured`` why steps of a mode ran eager.
``seconds`` maps ways and modes to what all windows of the set took, once a repetition; None where nothing was timed.
"""


def asked_of(protocol: Mapping[str, Any]) -> dict[str, int] | None:
    """``{"encoder_batch", "device_mib", "parallel"}``; None for a protocol that asks nothing about windows."""
    found: dict[str, int] | None = protocol.get("windows")
    return found


def count(asked: Mapping[str, int]) -> int:
    """How many windows of each set are asked: a whole batch of either kind."""
    return max(asked["encoder_batch"], asked["parallel"])


def turned_name(window: str, turn: int, turns: int) -> str:
    """The name of a window that begins ``turn`` of ``turns`` parts later; what was before comes after its end."""
    return f"{window} (turned by {turn} of {turns} parts)" if turn else window


def ways(asked: Mapping[str, int]) -> list[str]:
    """The ways to compare; a batch of one is eager's own way."""
    return [EAGER, CAPTURED, *([BATCHED] if asked["encoder_batch"] > 1 else [])]


def modes(asked: Mapping[str, int]) -> list[str]:
    """The modes to compare."""
    return [SEQUENTIAL, *([PARALLEL] if asked["parallel"] > 1 else [])]


def same_states(record: Record, way: str) -> bool:
    """Whether ``way`` gave every window the bits of eager's encoder."""
    return all(found["states"][way] == found["states"][EAGER] for found in record["sets"].values())


def equal(record: Record, way: str, mode: str) -> tuple[int, int]:
    """Windows whose tokens are eager's, of all that were asked, with hidden states of ``way`` decoded in ``mode``."""
    source = EAGER if same_states(record, way) else way
    pairs = [
        (wanted, got)
        for found in record["sets"].values()
        for wanted, got in zip(found["expected"], found["tokens"][source][mode], strict=True)
    ]
    return sum(wanted == got for wanted, got in pairs), len(pairs)


def grade(record: Record, way: str) -> str | None:
    """``bit-identical`` (hidden states and tokens), ``token-identical``, or None: neither, or it was refused."""
    if way in record["refused"] or not _all_equal(record, way, SEQUENTIAL):
        return None
    return BIT_IDENTICAL if same_states(record, way) else TOKEN_IDENTICAL


def decide(asked: Mapping[str, int], validated: Record, attempted: Record) -> dict[str, Any]:
    """``{"encoder", "grade", "mode"}``: the way and the mode that are used by default.

    Exact in validation and again in confirmation, where ``attempted`` was recorded; of those the fastest. A way is exact where
    all tokens are eager's; capturing, which is to keep all bits, only where it kept them. Several windows go in one call only
    where all tokens are eager's. Where nothing was timed, as in a rehearsal, it is what does most at a time. ``grade`` is the
    lower one of the encoder's two.
    """
    records = (validated, attempted)
    exact = [way for way in reversed(ways(asked)) if all(_exact(record, way) for record in records)] or [EAGER]
    encoder = _fastest(exact, validated["seconds"])
    decoded = [
        mode
        for mode in reversed(modes(asked))
        if mode == SEQUENTIAL or all(mode not in record["refused"] and _all_equal(record, encoder, mode) for record in records)
    ]
    grades = [grade(record, encoder) for record in records]
    lowest = next((low for low in (None, TOKEN_IDENTICAL) if low in grades), BIT_IDENTICAL)
    return {"encoder": encoder, "grade": lowest, "mode": _fastest(decoded, validated["seconds"])}


def summary(asked: Mapping[str, int], record: Record) -> dict[str, Any]:
    """What a receipt says of a record: grade and equal windows of each way, and what each way and mode took for all windows.

    ``seconds`` are the mean of the repetitions.
    """
    told: dict[str, Any] = {"of": sum(len(found["windows"]) for found in record["sets"].values()), "encoder": {}, "modes": {}}
    refused = record["refused"]
    for way in ways(asked):
        found = way not in refused
        told["encoder"][way] = {
            "grade": grade(record, way),
            "states_equal": _equal_states(record, way) if found else 0,
            "tokens_equal": {mode: equal(record, way, mode)[0] for mode in modes(asked) if found and mode not in refused},
            "seconds": _mean(record, way),
            "why": refused.get(way),
        }
    for mode in modes(asked):
        why = refused.get(mode) or record["not_captured"].get(mode)
        told["modes"][mode] = {"seconds": _mean(record, mode), "why": why}
    return told


def _exact(record: Record, way: str) -> bool:
    found = grade(record, way)
    return found == BIT_IDENTICAL or (found == TOKEN_IDENTICAL and way == BATCHED)


def _equal_states(record: Record, way: str) -> int:
    pairs = [zip(found["states"][way], found["states"][EAGER], strict=True) for found in record["sets"].values()]
    return sum(ours == theirs for states in pairs for ours, theirs in states)


def _all_equal(record: Record, way: str, mode: str) -> bool:
    same, of = equal(record, way, mode)
    return same == of


def _fastest(names: list[str], seconds: Mapping[str, Iterable[float]] | None) -> str:
    return names[0] if seconds is None else min(names, key=lambda name: math.fsum(seconds[name]))


def _mean(record: Record, name: str) -> float | None:
    measured = (record["seconds"] or {}).get(name)
    return math.fsum(measured) / len(measured) if measured else None
