"""The hotspots of eager's decode step on a terminal, from a profile alone."""

from __future__ import annotations

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from exactgraph.report.console import render
from exactgraph.report.profiled import (
    GPU_COLUMNS,
    KIND_COLUMNS,
    REACH_COLUMNS,
    Profile,
    build_order,
    kind_rows,
    reach_cells,
    step_sentences,
    timed,
)
from exactgraph.report.reading import sentence

WIDTH = 110


def hotspots(profile: Profile, color: bool = False) -> str:
    """``profile.json``, or a receipt's part on it, as text at most 110 columns wide; ``color`` adds terminal colours."""
    if profile["status"] != "profiled":
        return render([Text(f"Eager was not profiled. {sentence(profile['why'])}", "bold yellow")], WIDTH, color)
    if not timed(profile):
        first = "Nothing was timed here: shares of the host's time in a decode step of eager under a profiler."
        return render([Text(first, "bold yellow"), _kinds(profile)], WIDTH, color)
    parts: list[RenderableType] = [Text(step_sentences(profile)), _kinds(profile), _reach(profile)]
    parts += [Text(f"{name} is not built. {sentence(why)}", "dim") for name, why in profile["skip"].items()]
    return render(parts, WIDTH, color)


def _kinds(profile: Profile) -> Table:
    columns = KIND_COLUMNS + (GPU_COLUMNS if timed(profile) else ())
    grid = _grid(columns)
    for cells in kind_rows(profile):
        grid.add_row(*map(Text, cells))
    return grid


def _reach(profile: Profile) -> Table:
    grid = _grid(REACH_COLUMNS)
    for name in build_order(profile):
        grid.add_row(*map(Text, (name, *reach_cells(profile, name))), style="dim" if name in profile["skip"] else "")
    return grid


def _grid(columns: tuple[str, ...]) -> Table:
    """Names and words on the left, figures on the right."""
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for place, column in enumerate(columns):
        grid.add_column(column, justify="right" if place > 1 else "left", no_wrap=place != 1)
    return grid
