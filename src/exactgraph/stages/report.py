"""``report``: receipts as pages for people, from the receipts alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from exactgraph.canonical import read_json, whole_file
from exactgraph.receipts.schema import problems
from exactgraph.refusal import UserError
from exactgraph.report.html import html
from exactgraph.report.markdown import markdown
from exactgraph.report.page import report

MARKDOWN, HTML = "report.md", "report.html"


def run(receipts: list[Path], out_dir: Path) -> None:
    """Write both files into ``out_dir``."""
    read = [_read(path) for path in receipts]
    try:
        document = report(read)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        # The schema leaves parts of a receipt open, and a receipt may be anybody's.
        problem = f"{type(error).__name__}: {error}"
        raise UserError(f"A receipt does not hold what a report needs ({problem}).") from error
    for name, text in ((MARKDOWN, markdown(document)), (HTML, html(document))):
        with whole_file(out_dir / name) as file:
            file.write(text.encode())


def _read(path: Path) -> dict[str, Any]:
    try:
        receipt: dict[str, Any] = read_json(path)
    except (OSError, orjson.JSONDecodeError) as error:
        raise UserError(f"{path} cannot be read as a receipt: {error}.") from error
    found = problems(receipt)
    if found:
        raise UserError(f"{path} is not a receipt: {found[0]}.")
    return receipt
