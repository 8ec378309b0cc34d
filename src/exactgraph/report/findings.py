"""What did not go as eager does: rejected candidates, controls, confirmation, and the baseline itself."""

from __future__ import annotations

from typing import Any

from exactgraph.report.document import Block, Heading, Mono, Paragraph, Row, Table
from exactgraph.report.reading import (
    CONTROLS,
    VERDICTS,
    Candidate,
    candidates,
    count,
    difference,
    equal,
    equal_logits,
    rehearsal,
    why,
)

_LEFT_OUT = ("rejected", "mismatch", "refused", "failed", "skipped", "baseline-moved")


def rejected(predicate: dict[str, Any]) -> list[Block]:
    """Every candidate that is not exact, with what was seen of it."""
    proposed = candidates(predicate, control=False)
    found = [candidate for candidate in proposed if candidate.verdict in _LEFT_OUT]
    title = Heading(3, "Rejected, refused and failed candidates")
    if not found:
        return [title, Paragraph((f"None: {count(len(proposed), 'candidate')} tried, none left the baseline.",))]
    return [title, _differing(found)]


def controls(predicate: dict[str, Any]) -> list[Block]:
    """The controls, what each must end as, and what it did end as."""
    must = {"null": "exact" if rehearsal(predicate) else "not-faster", "wrong-ulp": "rejected", "wrong-late": "caught"}
    rows = []
    for candidate in candidates(predicate, control=True):
        wanted = must.get(candidate.name, "")
        tone = "" if candidate.verdict == wanted else "bad"
        cells = (
            (Mono(candidate.name),),
            (CONTROLS.get(candidate.name, "-"),),
            (VERDICTS.get(wanted, "-") if wanted != "exact" else "exact",),
            (VERDICTS[candidate.verdict] if candidate.verdict != "exact" else "exact",),
            (equal(candidate.record["comparison"]),),
            (equal_logits(candidate.record["comparison"]),),
            (why(candidate) or "No difference.",),
        )
        rows.append(Row(cells, tone))
    columns = ("control", "what it is", "must end", "ended", "equal answers", "equal logits", "what was seen")
    return [
        Heading(3, "Controls"),
        Paragraph(("A run counts only where its controls end as they must. Counts are those of validation.",), quiet=True),
        Table(columns, tuple(rows), frozenset({4, 5})),
    ]


def confirmation(predicate: dict[str, Any]) -> list[Block]:
    """The walk down the ranking in fresh processes."""
    title = Heading(3, "Confirmation")
    attempts = predicate["confirmation"]["attempts"]
    if not attempts:
        return [title, Paragraph(("Nothing was to be confirmed.",))]
    words = {"matched": "reproduced the baseline", "mismatch": "left the baseline", "failed": "failed"}
    rows = tuple(
        Row(
            (
                (Mono(attempt["candidate"]), " (control)" if attempt["control"] else ""),
                (words[attempt["status"]],),
                (equal(attempt["comparison"]),),
                (equal_logits(attempt["comparison"]),),
                (attempt["grade"] or "-",),
            ),
            "good" if attempt["status"] == "matched" and not attempt["control"] else "",
        )
        for attempt in attempts
    )
    return [
        title,
        Paragraph(
            (
                "Each attempt is a fresh process that captures anew and answers all prompts, also those and the length that "
                "validation never saw. Controls that must be caught come first; then the first candidate that reproduces the "
                "baseline ends the walk.",
            ),
            quiet=True,
        ),
        Table(("attempt", "result", "equal answers", "equal logits", "grade"), rows, frozenset({2, 3})),
    ]


def baseline(predicate: dict[str, Any]) -> list[Block]:
    """How the reference was found: pin, attempts and digest."""
    found = predicate["baseline"]
    if found["status"] != "frozen":
        opening = "Unmodified eager decoding did not reproduce itself under any attention backend that was tried."
    elif found["pin"]:
        opening = f"{count(len(found['runs']), 'fresh process', 'fresh processes')} agree. {found['pin']['sentence']}"
    else:
        runs = count(len(found["runs"]), "fresh process", "fresh processes")
        opening = (
            f"{runs} of unmodified eager decoding agree in every token and every logit under the default attention backend."
        )
    rows = tuple(
        Row(((Mono(attempt["attention"]),), ("yes" if attempt["agree"] else "no",), (_moved(attempt),)))
        for attempt in found["attempts"]
    )
    blocks: list[Block] = [
        Heading(3, "Baseline"),
        Paragraph((opening,)),
        Table(("attention backend", "runs agree", "first difference between runs"), rows),
    ]
    if found["traces_digest"]:
        blocks.append(Paragraph(("Digest of the frozen answers: ", Mono(found["traces_digest"]), "."), quiet=True))
    return blocks


def _moved(attempt: dict[str, Any]) -> str:
    if attempt["failed"]:
        return str(attempt["failed"]["sentence"])
    words = difference(attempt["difference"]) if attempt["difference"] else "none"
    return words.replace("where eager has", "where the first run has").replace("eager's best", "the first run's best")


def _differing(found: list[Candidate]) -> Table:
    rows = tuple(
        Row(
            (
                (Mono(candidate.name), f" {candidate.title}" if candidate.title else ""),
                (VERDICTS[candidate.verdict],),
                (equal(candidate.record["comparison"]),),
                (equal_logits(candidate.record["comparison"]),),
                (why(candidate) or "-",),
            )
        )
        for candidate in found
    )
    return Table(("candidate", "became", "equal answers", "equal logits", "what was seen"), rows, frozenset({2, 3}))
