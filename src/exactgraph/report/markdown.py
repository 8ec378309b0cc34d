"""A document as Markdown (GitHub's dialect, for tables)."""

from __future__ import annotations

import re

from exactgraph.report.document import (
    Banner,
    Block,
    Code,
    Document,
    Figures,
    Folded,
    Heading,
    Inline,
    Mono,
    Paragraph,
    Plot,
    Strong,
    Table,
    Text,
)

_BAR = re.compile(r"(?<!\\)\|")
# An underscore inside a word means itself.
_SPECIAL = re.compile(r"([\\`*\[\]<>|~&]|(?<![^\W_])_|_(?![^\W_]))")


def markdown(document: Document) -> str:
    """The document's text; drawings are left out."""
    parts = [part for block in document.blocks if (part := _block(block))]
    return "\n\n".join(parts) + "\n"


def _block(block: Block) -> str:
    match block:
        case Heading(level, words):
            return f"{'#' * level} {_plain(words)}"
        case Paragraph(text):
            return _inline(text)
        case Banner(_, label, words):
            return f"> **{_plain(label)}** {_plain(words)}"
        case Figures(entries):
            return "\n".join(f"- **{_plain(value)}** {_plain(what)} ({_plain(note)})" for value, what, note in entries)
        case Table():
            return _table(block)
        case Code(lines):
            return _fenced(lines)
        case Plot():
            return ""
        case Folded(summary, blocks):
            return "\n\n".join([f"**{_plain(summary)}**", *(part for inner in blocks if (part := _block(inner)))])


def _table(table: Table) -> str:
    rules = ["-:" if index in table.right else "-" for index in range(len(table.columns))]
    lines = [[_plain(column) for column in table.columns], rules]
    # Inside a table even a code span must not hold a bare bar.
    lines += [[_BAR.sub(r"\\|", _inline(cell)) for cell in row.cells] for row in table.rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _fenced(lines: str) -> str:
    fence = "`" * max(3, _longest_run(lines) + 1)
    return f"{fence}\n{lines.rstrip()}\n{fence}"


def _inline(text: Text) -> str:
    return "".join(map(_part, text))


def _part(part: Inline) -> str:
    match part:
        case Strong(words):
            return f"**{_plain(words)}**"
        case Mono(words):
            words = " ".join(words.split())
            fence = "`" * (_longest_run(words) + 1)
            pad = " " if words[:1] == "`" or words[-1:] == "`" else ""
            return f"{fence}{pad}{words}{pad}{fence}"
        case _:
            return _plain(part)


def _plain(words: str) -> str:
    """Words that mean themselves, on one line, also where they look like Markdown or HTML."""
    space = " " if words[:1] == " " else ""
    end = " " if words[-1:] == " " and words.strip() else ""
    return space + _SPECIAL.sub(r"\\\1", " ".join(words.split())) + end


def _longest_run(words: str) -> int:
    return max((len(run) for run in re.findall("`+", words)), default=0)
