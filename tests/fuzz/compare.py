"""What two processes made of the same sequences, held against each other by a third, which made nothing itself."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tests.fuzz.results import Result
from tests.fuzz.sequences import Sequence

PATHS = ("captured", "eager", "refused")


def differences(sequences: list[Sequence], got: list[Result], expected: list[Result]) -> list[dict[str, Any]]:
    """Events whose results are not those of eager, with enough to do them again."""
    found = []
    for sequence, ours, eagers in zip(sequences, got, expected, strict=True):
        if not ours["seed"] == eagers["seed"] == sequence["seed"]:
            raise ValueError(f"Results of another sequence: {ours['seed']}, {eagers['seed']} for {sequence['seed']}.")
        for index, (event, mine, theirs) in enumerate(
            zip(sequence["events"], ours["results"], eagers["results"], strict=True)
        ):
            if mine != theirs:
                found.append({"seed": sequence["seed"], "event": index, "what": event, "fields": _fields(mine, theirs)})
                break  # what follows may follow from it
    return found


def _fields(mine: list[Result], theirs: list[Result]) -> list[str]:
    if len(mine) != len(theirs):
        return ["calls"]
    pairs = list(zip(mine, theirs, strict=True))
    return sorted({name for one, other in pairs for name in one.keys() | other.keys() if one.get(name) != other.get(name)})


def by_kind(sequences: list[Sequence], got: list[Result]) -> dict[str, dict[str, int]]:
    """Per kind in focus: sequences, and calls of ``generate`` by how they ran."""
    table: dict[str, Counter[str]] = {}
    for sequence, ours in zip(sequences, got, strict=True):
        row = table.setdefault(sequence["kind"], Counter())
        row.update(ours["paths"])
        row["sequences"] += 1
    return {kind: {name: row[name] for name in ("sequences", *PATHS)} for kind, row in table.items()}


def errors(played: list[Result]) -> int:
    """Results that are errors."""
    events = [results for sequence in played for results in sequence["results"] if results is not None]
    return sum("error" in result for results in events for result in results)
