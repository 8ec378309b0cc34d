"""The evidence of device runs that is kept in docs/evidence must verify, and the figures next to it must be its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from exactgraph.canonical import read_json
from exactgraph.receipts.verify import verify
from exactgraph.report.rows import rows

EVIDENCE = Path(__file__).parents[2] / "docs" / "evidence"
RECEIPTS = sorted(EVIDENCE.glob("*/*@*/*/*/*/receipt.json"))


def test_there_is_evidence() -> None:
    assert RECEIPTS


@pytest.mark.parametrize("receipt", RECEIPTS, ids=lambda path: path.parents[3].name)
def test_committed_receipts_verify(receipt: Path) -> None:
    result = verify(receipt)
    assert result.ok, result.lines


@pytest.mark.parametrize("folder", sorted(path for path in EVIDENCE.iterdir() if path.is_dir()), ids=lambda path: path.name)
def test_rows_are_those_of_the_receipts(folder: Path) -> None:
    receipts = [read_json(path) for path in RECEIPTS if path.is_relative_to(folder)]
    assert read_json(folder / "workflow.json") == rows(receipts)


@pytest.mark.parametrize("receipt", RECEIPTS, ids=lambda path: path.parents[3].name)
def test_the_gate_worked(receipt: Path) -> None:
    predicate = read_json(receipt)["predicate"]
    assert predicate["status"] == "optimized"
    verdicts = {name: candidate["verdict"] for name, candidate in predicate["candidates"].items()}
    assert (verdicts["null"], verdicts["wrong-ulp"], verdicts["wrong-late"]) == ("not-faster", "rejected", "caught")
