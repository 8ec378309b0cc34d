"""Several sequences in one call, and windows of a speech model, with the confirmed candidate."""

from __future__ import annotations

from typing import Any

from exactgraph.report.document import Block, Heading, Mono, Paragraph, Row, Table
from exactgraph.report.reading import equal, equal_logits
from exactgraph.report.windows import sentence, windows


def lines(predicate: dict[str, Any]) -> list[str]:
    """A sentence on each, for the end of a run; none where nothing is confirmed, or nothing of it was asked."""
    attempt, told = _attempt(predicate), []
    if "batches" in attempt:
        parts = [
            f"{batch['batch']} ({equal(batch['comparison'])} equal, {'captured' if batch['served'] else 'eager'})"
            for batch in attempt["batches"]
        ]
        told.append(f"Sequences in one call with {attempt['candidate']}: {', '.join(parts)}.")
    if "windows" in attempt:
        told.append(sentence(predicate, attempt))
    return told


def several(predicate: dict[str, Any]) -> list[Block]:
    """The sections on each."""
    attempt = _attempt(predicate)
    blocks = _batches(attempt) if "batches" in attempt else []
    return blocks + (windows(predicate, attempt) if "windows" in attempt else [])


def _attempt(predicate: dict[str, Any]) -> dict[str, Any]:
    """The confirmation of the confirmed candidate, or nothing."""
    found = predicate["confirmation"]
    return next((attempt for attempt in found["attempts"] if attempt["candidate"] == found["confirmed"]), {})


def _batches(attempt: dict[str, Any]) -> list[Block]:
    rows = tuple(
        Row(
            (
                (str(batch["batch"]),),
                (equal(batch["comparison"]),),
                (equal_logits(batch["comparison"]),),
                ("captured" if batch["served"] else batch["why"],),
            )
        )
        for batch in attempt["batches"]
    )
    return [
        Heading(3, "Sequences in one call"),
        Paragraph(("At confirmation of ", Mono(attempt["candidate"]), ", beside eager in the same process."), quiet=True),
        Table(("sequences", "equal answers", "equal logits", "steps"), rows, frozenset({0, 1, 2})),
    ]
