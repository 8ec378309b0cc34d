"""A bench as a table for a terminal: eager, then each candidate; below it where one differs or why it did not run."""

from __future__ import annotations

from textwrap import shorten
from typing import Any

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from exactgraph.protocol.compare import sentence
from exactgraph.report.console import render

WIDTH = 120
_REASON_WIDTH = 300  # an error's text may be anything
_LEGEND = (
    "tok/s: decode, after the first token. ratio: eager's time over the candidate's, whole calls, {confidence:.0%} interval. "
    "GB/s: weights read. floor: GB/s as a share of the copy bandwidth, {bandwidth:.0f} GB/s here. "
    "first ms: median call of one token. peak: beside the model."
)


def table(result: dict[str, Any], color: bool = False) -> str:
    """The result as text at most 120 columns wide; ``color`` adds terminal colours, for when nothing is piped."""
    device, protocol = result["device"], result["protocol"]
    parts: list[RenderableType] = []
    if result["emulated"]:
        first = f"EMULATED on {device['id']}: capture is emulated on a CPU. Outputs are compared; nothing is timed."
        parts.append(Text(first, "bold yellow"))
    parts.append(
        Text.assemble((result["model"]["name"], "bold"), f" on {device['name']} ({device['id']}), {protocol['dtype']}")
    )
    parts.append(Text(_asked(protocol)))
    if not result["eager"]["reproduces"]:
        parts.append(Text(_moved(result), "bold red"))
    parts.append(_grid(result))
    parts += _notes(result["rows"])
    if result["floor"] is not None:
        bandwidth = result["floor"]["copy_bytes_s"] / 1e9
        parts.append(Text(_LEGEND.format(confidence=protocol["confidence"], bandwidth=bandwidth), "dim"))
    return render(parts, WIDTH, color)


def _asked(protocol: dict[str, Any]) -> str:
    return (
        f"{len(protocol['prompts'])} prompts of {protocol['prompt_set']}, {protocol['new_tokens']} new tokens, "
        f"{protocol['repetitions']} repetitions, attention {protocol['attention']}"
    )


def _moved(result: dict[str, Any]) -> str:
    where = sentence(result["eager"]["difference"])
    return f"eager does not reproduce itself here: {where}. Try --attention flash, efficient or math."


def _grid(result: dict[str, Any]) -> Table:
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    grid.add_column("candidate", no_wrap=True)
    grid.add_column("output", no_wrap=True)
    names = ["equal", "graphs"]
    if not result["emulated"]:
        names = ["equal", "tok/s", "ratio", "GB/s", "floor", "first\nms", "capture\ns", "graphs", "graph\nMiB", "peak\nMiB"]
    for name in names:
        grid.add_column(name, justify="right", no_wrap=True)
    for cells in [_eager(result["eager"]), *map(_candidate, result["rows"])]:
        grid.add_row(cells["candidate"], cells["output"], *(cells[name.replace("\n", " ")] for name in names))
    return grid


def _eager(eager: dict[str, Any]) -> dict[str, Text | str]:
    output = Text("reference") if eager["reproduces"] else Text("moves", "red")
    return {
        **_speed(eager, eager["first_token_ms"]),
        "candidate": Text("eager", "bold"),
        "output": output,
        **dict.fromkeys(("equal", "ratio", "capture s", "graphs", "graph MiB"), "-"),
    }


def _candidate(row: dict[str, Any]) -> dict[str, Text | str]:
    exact = row["status"] == "exact"
    output = row["grade"] if exact else "differs" if row["status"] == "rejected" else row["status"]
    first = row["first_token_ms"] and row["first_token_ms"]["candidate"]
    return {
        **_speed(row, first),
        "candidate": Text(row["id"], "dim" if row["control"] else "bold"),
        "output": Text(output, "green" if exact else "red"),
        "equal": "-" if row["of"] is None else f"{row['matches']}/{row['of']}",
        "ratio": "-" if row["ratio"] is None else f"{row['ratio']:.2f} [{row['interval'][0]:.2f}, {row['interval'][1]:.2f}]",
        "capture s": _figure(row["capture_s"], 2),
        "graphs": _figure(row["graphs"], 0),
        "graph MiB": _figure(row["graph_mib"], 0),
    }


def _speed(figures: dict[str, Any], first_ms: float | None) -> dict[str, Text | str]:
    share = figures["share_of_floor"]
    return {
        "tok/s": _figure(figures["tok_s"], 1),
        "GB/s": _figure(figures["gb_s"], 0),
        "floor": "-" if share is None else f"{share:.1%}",
        "first ms": _figure(first_ms, 1),
        "peak MiB": _figure(figures["peak_mib"], 0),
    }


def _figure(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _notes(rows: list[dict[str, Any]]) -> list[RenderableType]:
    """A line for each candidate that has something to explain."""
    lines = Table.grid(padding=(0, 2))
    lines.add_column(no_wrap=True, style="bold")
    lines.add_column()
    for row in rows:
        reason = row["why"] or (sentence(row["difference"]) if row["difference"] else None)
        if reason is not None:
            lines.add_row(Text(row["id"]), Text(shorten(reason, _REASON_WIDTH, placeholder=" …")))
    return [lines, Text()] if lines.row_count else []
