"""Hotspots: where eager's decode step goes, what each candidate can touch of it, and what it is with the candidate."""

from __future__ import annotations

from typing import Any

from exactgraph.report.document import Block, Heading, Mono, Paragraph, Plot, Row, Table
from exactgraph.report.profiled import (
    GPU_COLUMNS,
    KIND_COLUMNS,
    REACH_COLUMNS,
    Profile,
    amount,
    build_order,
    kind_rows,
    milliseconds,
    reach_cells,
    step_sentences,
    timed,
)
from exactgraph.report.reading import VERDICTS, Candidate, candidates, sentence

_WORK = ("kernels", "launches", "graph_launches")


def hotspots(predicate: dict[str, Any]) -> list[Block]:
    """The section; where nothing was timed, the kinds of work alone."""
    profile = predicate["profile"]
    title = Heading(3, "Hotspots")
    if profile["status"] != "profiled":
        return [title, Paragraph((f"Eager was not profiled. {sentence(profile['why'])}",))]
    if not timed(profile):
        words = "Nothing was timed here. These are shares of the host's time in a decode step of eager under a profiler."
        return [title, Paragraph((words,), quiet=True), _kinds(profile)]
    found = _in_build_order(predicate)
    return [
        title,
        Paragraph((step_sentences(profile),)),
        _kinds(profile),
        Paragraph(
            (
                "A share of host time is of the host thread in a step, under a profiler; the step's length was measured "
                "without it. Kernels count copies and fills, and all figures are averages of one step, with eager's attention "
                f"as it was frozen ({profile['attention']}) at prompt {profile['prompt']}.",
            ),
            quiet=True,
        ),
        _reach(profile, found),
        Paragraph(
            (
                "In the order in which they are built. At most: eager's step over what would remain of it if the host spent "
                "no time on what is touched. Measured: decode steps a second over those of eager in the same process, which "
                "is not the profile's.",
            ),
            quiet=True,
        ),
        *_after(profile, found),
    ]


def _kinds(profile: Profile) -> Table:
    columns = KIND_COLUMNS + (GPU_COLUMNS if timed(profile) else ())
    rows = tuple(Row(tuple((cell,) for cell in cells)) for cells in kind_rows(profile))
    return Table(columns, rows, frozenset(range(2, len(columns))))


def _in_build_order(predicate: dict[str, Any]) -> list[Candidate]:
    places = {name: place for place, name in enumerate(build_order(predicate["profile"]))}
    found = candidates(predicate, control=False)
    return sorted(found, key=lambda candidate: places.get(candidate.name, len(places)))


def _reach(profile: Profile, found: list[Candidate]) -> Table:
    rows = []
    for candidate in found:
        timing, skip = candidate.timing, profile["skip"].get(candidate.name)
        measured = f"{timing['candidate_tok_s'] / timing['eager_tok_s']:.2f}x" if timing else "-"
        became = VERDICTS[candidate.verdict] if skip is None else f"not built. {sentence(skip)}"
        cells = (*reach_cells(profile, candidate.name), measured, became)
        rows.append(Row(((Mono(candidate.name),), *((cell,) for cell in cells)), "" if skip is None else "quiet"))
    return Table((*REACH_COLUMNS, "measured", "became"), tuple(rows), frozenset(range(2, 7)), frozenset({0}))


def _after(profile: Profile, found: list[Candidate]) -> list[Block]:
    """Eager's step beside those of the candidates that were profiled after they were timed."""
    before = profile["gpu"]
    rows, steps = [], [("Eager", profile["step_ms"], before["busy_ms"])]
    for candidate in found:
        after = candidate.record["measured"].get("profile", {})
        if candidate.timing is None or "busy_ms" not in after:
            continue
        counts = [f"{amount(before[name])} → {amount(after[name])}" for name in _WORK]
        busy = f"{milliseconds(before['busy_ms'])} → {milliseconds(after['busy_ms'])}"
        rows.append(Row(((Mono(candidate.name),), *((cell,) for cell in (*counts, busy)))))
        label = f"{candidate.name} {candidate.title}".rstrip()
        steps.append((label, 1000 / candidate.timing["candidate_tok_s"], after["busy_ms"]))
    if not rows:
        return []
    columns = ("candidate", "kernels", "launches", "graph launches", "GPU busy")
    return [
        Paragraph(("A step of eager, and with the candidate:",)),
        Table(columns, tuple(rows), frozenset({1, 2, 3, 4})),
        _plot(steps),
    ]


def _plot(steps: list[tuple[str, float, float]]) -> Plot:
    from exactgraph.report import plots

    return Plot(
        plots.steps([plots.StepBar(*step) for step in steps]),
        "A decode step, and what of it the GPU works",
        "Blue: the GPU is busy. Grey: it waits. A candidate's step is that of its timed process, so it compares with eager's "
        "here only as far as the host's speed held from one process to the next.",
    )
