"""Windows of a speech model with the confirmed candidate: every way to encode and to decode them, and what is used."""

from __future__ import annotations

from typing import Any

from exactgraph.report.document import Block, Heading, Paragraph, Row, Table
from exactgraph.report.reading import rehearsal

_ENCODER = {
    "eager": "eager's encoder, one window at a time",
    "captured": "the same encoder captured, one window at a time",
    "batched": "eager's encoder in batches of {encoder_batch}",
}
_MODES = {"sequential": "one window after the other", "parallel": "{parallel} windows in one call"}


def windows(predicate: dict[str, Any], attempt: dict[str, Any]) -> list[Block]:
    """The section; ``attempt`` is the confirmation of the confirmed candidate."""
    asked, used = predicate["protocol"]["whole"]["windows"], predicate["confirmation"]["windows"]
    told = predicate["candidates"][attempt["candidate"]]["windows"], attempt["windows"]
    timed = not rehearsal(predicate)
    rows = []
    for way in filter(told[0]["encoder"].__contains__, _ENCODER):
        records = [one["encoder"][way] for one in told]
        states = ", ".join(f"{record['states_equal']}/{one['of']}" for record, one in zip(records, told, strict=True))
        cells = [_ENCODER[way].format(**asked), _grades(records), states, _tokens(told, way, "sequential")]
        rows.append(_row(cells, records, timed, way == used["encoder"]))
    for mode in filter(told[0]["modes"].__contains__, _MODES):
        cells = [_MODES[mode].format(**asked), "-", "-", _tokens(told, used["encoder"], mode)]
        rows.append(_row(cells, [one["modes"][mode] for one in told], timed, mode == used["mode"]))
    columns = ["windows", "grade", "equal hidden states", "equal tokens"]
    columns += [f"seconds for {told[0]['of']}"] if timed else []
    fastest = ", and of that the one that took least" if timed else ""
    return [
        Heading(3, "Windows ahead of decoding"),
        Paragraph((sentence(predicate, attempt),)),
        Paragraph(
            (
                "The first rows encode windows before the first token, the others decode them. Each is held against eager, "
                "one window at a time, at validation and again at confirmation; both counts are given. ",
                f"What is exact in both may be used{fastest}.",
            ),
            quiet=True,
        ),
        Table((*columns, "used", "what was seen"), tuple(rows), frozenset({2, 3, 4} if timed else {2, 3})),
    ]


def sentence(predicate: dict[str, Any], attempt: dict[str, Any]) -> str:
    """What is used, and on a GPU what it took."""
    asked, used = predicate["protocol"]["whole"]["windows"], predicate["confirmation"]["windows"]
    encoder, mode = _ENCODER[used["encoder"]].format(**asked), _MODES[used["mode"]].format(**asked)
    words = f"Windows with {attempt['candidate']}: {encoder} ({used['grade'] or 'no grade'}), then decoded {mode}."
    if rehearsal(predicate):
        return words
    told = predicate["candidates"][attempt["candidate"]]["windows"]
    taken = {name: record["seconds"] for part in ("encoder", "modes") for name, record in told[part].items()}
    return (
        f"{words} {told['of']} windows took {taken[used['encoder']]:.3f} s to encode (eager {taken['eager']:.3f} s) and "
        f"{taken[used['mode']]:.3f} s to decode (one after the other {taken['sequential']:.3f} s)."
    )


def _row(cells: list[str], records: list[dict[str, Any]], timed: bool, used: bool) -> Row:
    if timed:
        cells = [*cells, "-" if records[0]["seconds"] is None else f"{records[0]['seconds']:.3f}"]
    why = next((record["why"] for record in records if record["why"]), "-")
    return Row(tuple((cell,) for cell in (*cells, "yes" if used else "", why)), "good" if used else "")


def _grades(records: list[dict[str, Any]]) -> str:
    first, second = (record["grade"] or "-" for record in records)
    return first if first == second else f"{first}, {second}"


def _tokens(told: tuple[dict[str, Any], ...], way: str, mode: str) -> str:
    counts = [(one["encoder"][way]["tokens_equal"].get(mode), one["of"]) for one in told]
    return ", ".join("-" if same is None else f"{same}/{of}" for same, of in counts)
