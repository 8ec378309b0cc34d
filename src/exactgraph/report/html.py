"""A document as one HTML page that needs nothing else: style and drawings are inside, nothing is loaded."""

from __future__ import annotations

from html import escape
from importlib import resources

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
    Row,
    Strong,
    Table,
    Text,
)

STYLE = "page.css"


def html(document: Document) -> str:
    """The whole page."""
    style = resources.files("exactgraph.report").joinpath(STYLE).read_text()
    body = "\n".join(map(_block, document.blocks))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        # A receipt may be anybody's: whatever its texts try, the page loads and runs nothing.
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{escape(document.title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _block(block: Block) -> str:
    match block:
        case Heading(level, words):
            return f"<h{level}>{escape(words)}</h{level}>"
        case Paragraph(text, quiet):
            return f"<p{_class('quiet' if quiet else '')}>{_inline(text)}</p>"
        case Banner(tone, label, words):
            return f'<div class="banner {tone}"><strong>{escape(label)}</strong><span>{escape(words)}</span></div>'
        case Figures(entries):
            return f'<div class="figures">{"".join(_figure(*entry) for entry in entries)}</div>'
        case Table():
            return _table(block)
        case Code(lines, wrap):
            return f"<pre{_class('wrap' if wrap else '')}>{escape(lines.rstrip())}</pre>"
        case Plot(svg, title, caption):
            return (
                f'<figure role="img" aria-label="{escape(title)}"><h4>{escape(title)}</h4>\n{svg}\n'
                f"<figcaption>{escape(caption)}</figcaption></figure>"
            )
        case Folded(summary, blocks):
            return f"<details><summary>{escape(summary)}</summary>\n{''.join(map(_block, blocks))}\n</details>"


def _figure(value: str, what: str, note: str) -> str:
    return f"<div><b>{escape(value)}</b><span>{escape(what)}</span><small>{escape(note)}</small></div>"


def _table(table: Table) -> str:
    head = "".join(f"<th{_side(table, index)}>{escape(column)}</th>" for index, column in enumerate(table.columns))
    rows = "\n".join(_row(table, row) for row in table.rows)
    return f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table></div>'


def _row(table: Table, row: Row) -> str:
    cells = "".join(f"<td{_side(table, index)}>{_inline(cell)}</td>" for index, cell in enumerate(row.cells))
    return f"<tr{_class(row.tone)}>{cells}</tr>"


def _side(table: Table, index: int) -> str:
    names = ("right" if index in table.right else "", "whole" if index in table.whole else "")
    return _class(" ".join(filter(None, names)))


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""


def _inline(text: Text) -> str:
    return "".join(map(_part, text))


def _part(part: Inline) -> str:
    match part:
        case Strong(words):
            return f"<strong>{escape(words)}</strong>"
        case Mono(words):
            return f"<code>{escape(words)}</code>"
        case _:
            return escape(part)
