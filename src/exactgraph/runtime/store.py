"""Where receipts are looked for: the project's artifacts, the user's own folder of imported ones, or what a program names."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from platformdirs import user_data_path

from exactgraph.receipts.bundle import import_bundle
from exactgraph.receipts.statement import RECEIPT
from exactgraph.runtime.not_optimized import NotOptimized
from exactgraph.workflow.keys import ROOT

_PLACES = f"*@*/*/*/*/{RECEIPT}"


def user_store() -> Path:
    """The user's folder of receipts, for ``exactgraph import`` to fill."""
    return user_data_path("exactgraph") / "receipts"


@contextmanager
def receipts_in(where: Path | None) -> Iterator[list[Path]]:
    """The receipts of ``where``: a folder, a receipt, or what ``exactgraph export`` wrote, which is unpacked for the block.

    None stands for ``artifacts/`` of the current folder and then the user's folder.
    """
    if where is None:
        yield [path for root in (Path(ROOT), user_store()) for path in _below(root)]
    elif where.is_dir():
        yield _below(where)
    elif where.suffix == ".json":
        yield [where]
    elif where.is_file():
        with tempfile.TemporaryDirectory(prefix="exactgraph-") as folder:
            yield [import_bundle(where, Path(folder))[0]]
    else:
        sentence = f"{where} is not there: name a folder of receipts, a receipt, or a file that exactgraph export wrote."
        raise NotOptimized("no-receipt", sentence)


def _below(root: Path) -> list[Path]:
    own = root / RECEIPT
    return [own] if own.is_file() else sorted(root.glob(_PLACES))
