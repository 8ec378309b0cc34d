"""Rich's tables as text, for a terminal or a pipe."""

from __future__ import annotations

from collections.abc import Iterable
from io import StringIO

from rich.console import Console, RenderableType


def render(parts: Iterable[RenderableType], width: int, color: bool) -> str:
    """The parts below each other, at most ``width`` columns wide; without ``color`` plain text."""
    target = StringIO()
    console = Console(
        file=target, width=width, force_terminal=color, no_color=not color, highlight=False, legacy_windows=False
    )
    for part in parts:
        console.print(part)
    return "\n".join(line.rstrip() for line in target.getvalue().splitlines()) + "\n"
