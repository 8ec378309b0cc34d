"""What there is, on a terminal: devices, their environments, protocols and models, and how each receipt stands."""

from __future__ import annotations

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from exactgraph.receipts.status import CURRENT, STALE, UNKNOWN, Row
from exactgraph.report.console import render

WIDTH = 110
_STYLES = {CURRENT: "green", STALE: "yellow"}


def status_table(rows: list[Row], color: bool = False) -> str:
    """For each device its environments, protocols and models, each current, stale or missing; below it what the keys stand
    for, and the reasons."""
    if not rows:
        return "No receipts, and none wanted.\n"
    parts: list[RenderableType] = []
    for device in sorted({row.device for row in rows}):
        here = sorted(
            (row for row in rows if row.device == device), key=lambda row: (row.environment, row.protocol, row.model)
        )
        parts += [Text(device, "bold"), _matrix(here), *_legend(here)]
    return render(parts, WIDTH, color)


def _matrix(rows: list[Row]) -> Table:
    """Rows of one device; a key that is the same as above is not repeated."""
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("environment", "protocol", "model", "status", "candidate", "receipt"):
        grid.add_column(name, overflow="fold")
    above: tuple[str, str] = ("", "")
    for row in rows:
        keys = (row.environment[:8], row.protocol[:8])
        environment = "" if keys[0] == above[0] else keys[0]
        protocol = "" if keys == above else keys[1]
        state = Text(row.state, _STYLES.get(row.state, "red"))
        grid.add_row(environment, protocol, row.model, row.status or "-", row.confirmed or "-", state)
        above = keys
    return grid


def _legend(rows: list[Row]) -> list[Text]:
    meanings = [f"environment {row.environment[:8]}: {row.libraries}" for row in rows if row.libraries != UNKNOWN]
    meanings += [f"protocol {row.protocol[:8]}: {row.asked}" for row in rows if row.asked != UNKNOWN]
    reasons = [
        f"{row.model} in {row.environment[:8]}/{row.protocol[:8]}, {row.state}: {'; '.join(row.why)}."
        for row in rows
        if row.why
    ]
    return [*(Text(line, "dim") for line in dict.fromkeys(meanings)), *(Text(line) for line in reasons), Text()]
