"""Speed and exactness by precision: a row for each receipt, the precisions of one model on one device beside each other."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from exactgraph.report.console import render

WIDTH = 110
_ORDER = ("fp32", "bf16", "fp16")
_LEGEND = (
    "tok/s: decode, after the first token. output: how equal the confirmed candidate's is to eager's in the same precision."
)


def precisions(receipts: list[dict[str, Any]], color: bool = False) -> str:
    """Receipts as text at most 110 columns wide, a table for each device and model; ``color`` adds terminal colours."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for receipt in receipts:
        predicate = receipt["predicate"]
        groups.setdefault((predicate["device"]["name"], receipt["subject"][0]["name"]), []).append(predicate)
    parts: list[RenderableType] = []
    for (device, model), predicates in sorted(groups.items(), key=lambda group: group[0]):
        parts += [Text.assemble((model, "bold"), f" on {device}"), _grid(predicates)]
    return render([*parts, Text(_LEGEND, "dim")], WIDTH, color)


def _grid(predicates: list[dict[str, Any]]) -> Table:
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("precision", "candidate", "output"):
        grid.add_column(name, no_wrap=True)
    for name in ("eager tok/s", "tok/s", "ratio to eager"):
        grid.add_column(name, justify="right", no_wrap=True)
    for predicate in sorted(predicates, key=lambda found: _ORDER.index(found["precision"])):
        confirmed = predicate["candidates"].get(predicate["confirmation"]["confirmed"])
        grid.add_row(predicate["precision"], *_cells(predicate, confirmed))
    return grid


def _cells(predicate: dict[str, Any], confirmed: dict[str, Any] | None) -> list[str]:
    """Candidate, grade and figures; where nothing was confirmed, the status and eager's own speed where it was measured."""
    if confirmed is None:
        timed = [found["timing"] for found in predicate["candidates"].values() if found["timing"]]
        eager = f"{timed[0]['eager_tok_s']:.1f}" if timed else "-"
        return ["-", predicate["status"], eager, "-", "-"]
    timing = confirmed["timing"]
    cells = [predicate["confirmation"]["confirmed"], confirmed["grade"]]
    if not timing:  # a rehearsal
        return [*cells, "-", "-", "-"]
    low, high = timing["interval"]
    figures = [f"{timing['eager_tok_s']:.1f}", f"{timing['candidate_tok_s']:.1f}"]
    return [*cells, *figures, f"{timing['ratio']:.2f}x [{low:.2f}, {high:.2f}]"]
