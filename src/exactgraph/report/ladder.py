"""The ladder: each timed candidate against eager in the same process."""

from __future__ import annotations

import statistics
from typing import Any

from exactgraph.report.document import Banner, Block, Code, Folded, Heading, Mono, Paragraph, Plot, Row, Strong, Table, Text
from exactgraph.report.reading import VERDICTS, Candidate, candidates, equal, equal_logits, gain, percent, rehearsal

_ON_THE_LADDER = ("confirmed", "ranked")
_TONES = {"confirmed": "good", "mismatch": "bad", "not-faster": "quiet"}


def ladder(predicate: dict[str, Any]) -> list[Block]:
    """The section; in a rehearsal, where nothing was timed, answers alone."""
    if rehearsal(predicate):
        return _untimed(predicate)
    rungs = [candidate for candidate in candidates(predicate, control=False) if candidate.timing]
    controls = [candidate for candidate in candidates(predicate, control=True) if candidate.timing]
    title = Heading(3, "The ladder")
    if not rungs:
        return [title, Paragraph(("No candidate was timed: only what reproduces the baseline is.",))]
    return [
        title,
        *_warning(predicate),
        Code(_printed(rungs, [*rungs, *controls])),
        Paragraph(
            (
                "Each candidate alternates with eager in a process of its own, and each gain is against that eager: "
                "the speed of a shared host differs from process to process, a ratio inside one process holds. ",
                "tok/s are decode steps, without the prompt and the first token. ",
                "The ratio is of whole calls, prompt included; it decides, and it has the interval.",
            ),
            quiet=True,
        ),
        _table(rungs),
        *_noise([*rungs, *controls]),
        Paragraph(
            (
                _untried(rungs),
                _floor(rungs),
            ),
            quiet=True,
        ),
        *_plots(rungs, controls),
        Folded("What each rung costs", (_costs(rungs),)),
    ]


def _warning(predicate: dict[str, Any]) -> list[Block]:
    if predicate["status"] == "controls-failed":
        return [Banner("bad", "Not to be relied on", "A control ended otherwise than it must, so these figures show nothing.")]
    return []


def _noise(timed: list[Candidate]) -> list[Block]:
    """What the driver saw beside a timing that makes its figures less certain."""
    found = [(candidate, candidate.record["measured"].get("load", {}).get("noisy", [])) for candidate in timed]
    return [
        Paragraph(("Noisy timing of ", Mono(candidate.name), f": {'; '.join(noisy)}."), quiet=True)
        for candidate, noisy in found
        if noisy
    ]


def _printed(rungs: list[Candidate], timed: list[Candidate]) -> str:
    eagers = [candidate.timing["eager_tok_s"] for candidate in timed if candidate.timing]
    names = [f"{candidate.name} {candidate.title}".rstrip() for candidate in rungs]
    width = max(map(len, ["Eager baseline", *names])) + 3
    spread = f"median of {len(eagers)} processes, {min(eagers):.2f} to {max(eagers):.2f}" if len(eagers) > 1 else "one process"
    lines = [f"{'Eager baseline':<{width}}{statistics.median(eagers):>8.2f} tok/s   {spread}"]
    for name, candidate in zip(names, rungs, strict=True):
        timing = candidate.timing or {}
        over = f"({gain(timing)})"
        beside = f"its eager {timing['eager_tok_s']:.2f}"
        answers = f"{equal(candidate.record['comparison'])} {candidate.record['grade']}"
        if candidate.verdict not in _ON_THE_LADDER:
            answers += f"   {VERDICTS[candidate.verdict]}"
        lines.append(f"{name:<{width}}{timing['candidate_tok_s']:>8.2f} tok/s   {over:<10} {beside:<17} {answers}")
    return "\n".join(lines)


def _table(rungs: list[Candidate]) -> Table:
    confidence = next(candidate.timing["confidence"] for candidate in rungs if candidate.timing)
    columns = (
        *("candidate", "equal answers", "grade", "eager tok/s", "tok/s", "gain", f"ratio, {confidence:.0%} interval"),
        *("share of floor", "became"),
    )
    return Table(columns, tuple(map(_row, rungs)), frozenset({1, 3, 4, 5, 6, 7}), frozenset({0, 2, 8}))


def _row(candidate: Candidate) -> Row:
    timing = candidate.timing or {}
    low, high = timing["interval"]
    cells: tuple[Text, ...] = (
        _name(candidate),
        (equal(candidate.record["comparison"]),),
        (candidate.record["grade"] or "-",),
        (f"{timing['eager_tok_s']:.2f}",),
        (f"{timing['candidate_tok_s']:.2f}",),
        (gain(timing),),
        (Strong(f"{timing['ratio']:.2f}x"), f" [{low:.2f}, {high:.2f}]"),
        (percent(candidate.record["measured"].get("share_of_floor")),),
        (VERDICTS[candidate.verdict],),
    )
    return Row(cells, _TONES.get(candidate.verdict, ""))


def _name(candidate: Candidate) -> Text:
    return (Mono(candidate.name), f" {candidate.title}") if candidate.title else (Mono(candidate.name),)


def _untried(rungs: list[Candidate]) -> str:
    if any(candidate.verdict == "ranked" for candidate in rungs):
        return "Not tried: confirmation begins with the fastest candidate and ends with the first that matches. "
    return ""


def _floor(rungs: list[Candidate]) -> str:
    measured = [candidate.record["measured"] for candidate in rungs]
    copies = [found["copy_bandwidth_bytes_s"] / 1e12 for found in measured if "copy_bandwidth_bytes_s" in found]
    if not copies:
        return "The bandwidth floor was not measured."
    low, high = f"{min(copies):.2f}", f"{max(copies):.2f}"
    weights = max(found.get("step_weight_bytes", 0) for found in measured) / 1e9
    copied = low if low == high else f"{low} to {high}"
    return (
        f"Bandwidth floor: a decode step has to read {weights:.2f} GB of weights once. The share is the rate at which a "
        f"candidate reads them over the copy bandwidth measured in the same process ({copied} TB/s, bytes read "
        "and written together)."
    )


def _costs(rungs: list[Candidate]) -> Table:
    """Graphs, the memory that they hold and the time that capturing them takes."""

    def cells(candidate: Candidate) -> tuple[Text, ...]:
        measured = candidate.record["measured"]
        memory, seconds = measured.get("graph_bytes"), measured.get("capture_seconds")
        return (
            _name(candidate),
            (str(measured.get("graphs", "-")),),
            ("-" if memory is None else f"{memory / 1e6:.1f} MB",),
            ("-" if seconds is None else f"{seconds:.2f} s",),
        )

    rows = tuple(Row(cells(candidate)) for candidate in rungs)
    return Table(("candidate", "graphs captured", "memory they hold", "capture time"), rows, frozenset({1, 2, 3}))


def _plots(rungs: list[Candidate], controls: list[Candidate]) -> list[Block]:
    from exactgraph.report import plots

    def bar(candidate: Candidate) -> plots.Bar:
        timing = candidate.timing or {}
        low, high = timing["interval"]
        label = f"{candidate.name} {'(control)' if candidate.record['control'] else candidate.title}".rstrip()
        rates = timing["eager_tok_s"], timing["candidate_tok_s"]
        return plots.Bar(label, candidate.verdict, *rates, timing["ratio"], low, high)

    return [
        Plot(
            plots.rates(list(map(bar, rungs))),
            "Decode speed of each rung beside its own eager",
            "A receipt has an interval for the ratio of whole calls and none for a rate: "
            "a whisker is the ratio's interval, scaled to the candidate's rate. Green is confirmed, blue ranked, red rejected "
            "at confirmation, grey the rest.",
        ),
        Plot(
            plots.ratios(list(map(bar, [*rungs, *controls]))),
            "Times as fast as eager, with interval",
            "Faster is what lies right of 1 with its whole interval. The control is eager timed against itself: its interval "
            "must not lie right of 1.",
        ),
    ]


def _untimed(predicate: dict[str, Any]) -> list[Block]:
    columns = ("candidate", "equal answers", "equal logits", "grade", "became")
    rows = [
        Row(
            (
                _name(candidate),
                (equal(candidate.record["comparison"]),),
                (equal_logits(candidate.record["comparison"]),),
                (candidate.record["grade"] or "-",),
                (VERDICTS[candidate.verdict],),
            ),
            _TONES.get(candidate.verdict, ""),
        )
        for candidate in candidates(predicate, control=False)
    ]
    return [
        Heading(3, "The candidates"),
        Paragraph(("A rehearsal compares answers and times nothing.",), quiet=True),
        Table(columns, tuple(rows), frozenset({1, 2})),
    ]
