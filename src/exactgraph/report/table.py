"""The end of a run on a terminal: a table of candidates, where the rejected ones differ, and the verdict in words."""

from __future__ import annotations

from textwrap import shorten
from typing import Any

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from exactgraph.protocol.compare import sentence
from exactgraph.report.console import render
from exactgraph.report.several import lines

WIDTH = 110
_REASON_WIDTH = 300  # an error's text may be anything
_STYLES = {
    "confirmed": "bold green",
    "caught": "cyan",
    "ranked": "green",
    "exact": "green",
    "rejected": "red",
    "mismatch": "red",
    "failed": "red",
    "uncaught": "bold red",
}


def table(receipt: dict[str, Any], color: bool = False) -> str:
    """The receipt as text at most 110 columns wide; ``color`` adds terminal colours, for when nothing is piped.

    A rehearsal says that it is one in its first line and in its last.
    """
    predicate = receipt["predicate"]
    rehearsal = predicate["protocol"]["whole"]["rehearsal"]
    device, subject = predicate["device"], receipt["subject"][0]["name"]
    parts: list[RenderableType] = []
    if rehearsal:
        first = f"REHEARSAL on {device['id']}: candidates are compared for exactness, nothing is timed."
        parts.append(Text(first, "bold yellow"))
    parts.append(Text.assemble((subject, "bold"), f" on {device['name']} ({device['id']}), {predicate['precision']}"))
    parts.append(Text(_baseline_line(predicate)))
    parts.append(_candidates(predicate, timed=not rehearsal))
    notes = _notes(predicate)
    parts += [notes, Text()] if notes.row_count else []
    told = lines(predicate)
    parts += [*map(Text, told), Text()] if told else []
    parts.append(_verdict(predicate, rehearsal))
    return render(parts, WIDTH, color)


def _baseline_line(predicate: dict[str, Any]) -> str:
    baseline = predicate["baseline"]
    if baseline["status"] != "frozen":
        return "Baseline: eager did not reproduce itself under any attention backend."
    runs = len(baseline["runs"])
    if baseline["pin"]:
        return f"Baseline: {runs} fresh processes agree. {baseline['pin']['sentence']}"
    return f"Baseline: {runs} fresh processes agree under the default attention backend."


def _candidates(predicate: dict[str, Any], timed: bool) -> Table:
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    grid.add_column("candidate", no_wrap=True)
    grid.add_column("verdict", no_wrap=True)
    grid.add_column("equal", justify="right", no_wrap=True)
    grid.add_column("grade", no_wrap=True)
    if timed:
        grid.add_column("eager tok/s", justify="right", no_wrap=True)
        grid.add_column("tok/s", justify="right", no_wrap=True)
        grid.add_column("ratio to eager", justify="right", no_wrap=True)
    for name, candidate in _in_order(predicate):
        comparison, timing = candidate["comparison"], candidate["timing"]
        label = f"{name} (control)" if candidate["control"] else name
        cells = [
            Text(label, "dim" if candidate["control"] else "bold"),
            Text(candidate["verdict"], _STYLES.get(candidate["verdict"], "")),
            f"{comparison['matches']}/{comparison['of']}" if comparison else "-",
            candidate["grade"] or "-",
        ]
        if timed and timing:
            low, high = timing["interval"]
            cells += [f"{timing['eager_tok_s']:.1f}", f"{timing['candidate_tok_s']:.1f}"]
            cells += [f"{timing['ratio']:.2f}x [{low:.2f}, {high:.2f}]"]
        elif timed:
            cells += ["-", "-", "-"]
        grid.add_row(*cells)
    return grid


def _in_order(predicate: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Proposed candidates before controls, the ranked ones first and in their order."""
    order = predicate["ranking"]["order"]
    places = {name: place for place, name in enumerate(order)}
    entries = predicate["candidates"].items()
    return sorted(entries, key=lambda entry: (entry[1]["control"], places.get(entry[0], len(places)), entry[0]))


def _notes(predicate: dict[str, Any]) -> Table:
    """A line for each candidate that has something to explain: where it differs, or why it has no comparison."""
    attempts = {attempt["candidate"]: attempt for attempt in predicate["confirmation"]["attempts"]}
    lines = Table.grid(padding=(0, 2))
    lines.add_column(no_wrap=True, style="bold")
    lines.add_column()
    for name, candidate in _in_order(predicate):
        reason = _reason(candidate, attempts.get(name))
        if reason is not None:
            lines.add_row(Text(name), Text(shorten(reason, _REASON_WIDTH, placeholder=" …")))
    return lines


def _reason(candidate: dict[str, Any], attempt: dict[str, Any] | None) -> str | None:
    found = candidate["comparison"] and candidate["comparison"]["first_token_difference"]
    if found:
        return f"at validation, {sentence(found)}"
    if attempt is not None and attempt["status"] != "matched":
        return f"at confirmation, {sentence(attempt['difference']) if attempt['difference'] else attempt['why']}"
    if candidate["verdict"] in ("refused", "failed", "rejected", "skipped", "baseline-moved"):
        return candidate["why"] or None
    return None


def _verdict(predicate: dict[str, Any], rehearsal: bool) -> Text:
    device, confirmed = predicate["device"]["id"], predicate["confirmation"]["confirmed"]
    candidate = predicate["candidates"].get(confirmed)
    if rehearsal:
        end = "nothing was timed; run on an NVIDIA GPU for a receipt that can say optimized."
        if predicate["status"] == "rehearsal":
            body = f"{confirmed} reproduces the baseline ({candidate['grade']}), {end}"
        else:
            body = f"{predicate['status']}. {predicate['sentence']} Also, {end}"
        return Text(f"REHEARSAL on {device}: {body}", "bold yellow")
    if predicate["status"] == "optimized":
        ratio = candidate["timing"]["ratio"]
        return Text(f"{device} is OPTIMIZED with {confirmed} ({candidate['grade']}, {ratio:.3g}x).", "bold green")
    return Text(f"{device} is NOT OPTIMIZED: {predicate['status']}. {predicate['sentence']}", "bold red")
