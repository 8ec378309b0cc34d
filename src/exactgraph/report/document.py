"""A report as blocks that know nothing of how they will look; ``markdown`` and ``html`` each render all of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias


@dataclass(frozen=True)
class Strong:
    """Words to stress."""

    words: str


@dataclass(frozen=True)
class Mono:
    """A name, a digest or a command inside a sentence."""

    words: str


Inline: TypeAlias = str | Strong | Mono
Text: TypeAlias = tuple[Inline, ...]


@dataclass(frozen=True)
class Heading:
    """``level`` 1 is the title of the page, 2 that of a receipt, 3 a section."""

    level: int
    words: str


@dataclass(frozen=True)
class Paragraph:
    """A few sentences; ``quiet`` ones explain what stands above them."""

    text: Text
    quiet: bool = False


@dataclass(frozen=True)
class Banner:
    """What a reader must not miss. ``tone`` is ``good``, ``bad`` or ``rehearsal``."""

    tone: str
    label: str
    words: str


@dataclass(frozen=True)
class Figures:
    """Few large figures: value, what it is, and a note."""

    entries: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True)
class Row:
    """A table's row; ``tone`` is ``good``, ``bad``, ``quiet`` or empty."""

    cells: tuple[Text, ...]
    tone: str = ""


@dataclass(frozen=True)
class Table:
    """``right`` holds the columns with figures, aligned to the right; cells of ``whole`` columns stay on one line."""

    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    right: frozenset[int] = frozenset()
    whole: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Code:
    """Lines to read in columns, or commands to copy; ``wrap`` breaks long ones where columns do not matter."""

    lines: str
    wrap: bool = False


@dataclass(frozen=True)
class Plot:
    """A drawing, as an SVG element for the page; its figures stand in a table too, so Markdown leaves it out."""

    svg: str
    title: str
    caption: str


@dataclass(frozen=True)
class Folded:
    """Blocks that a page shows on demand."""

    summary: str
    blocks: tuple[Block, ...]


Block: TypeAlias = Heading | Paragraph | Banner | Figures | Table | Code | Plot | Folded


@dataclass
class Document:
    """A page in the making."""

    title: str
    blocks: list[Block] = field(default_factory=list)

    def add(self, *blocks: Block) -> None:
        """Append blocks."""
        self.blocks += blocks
