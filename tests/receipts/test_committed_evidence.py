"""The evidence of device runs that is kept in docs/evidence must verify, and the figures next to it must be its own."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from exactgraph.canonical import read_json
from exactgraph.receipts.alike import alike
from exactgraph.receipts.verify import verify
from exactgraph.report.rows import rows

EVIDENCE = Path(__file__).parents[2] / "docs" / "evidence"
RECEIPTS = sorted(EVIDENCE.glob("*/*@*/*/*/*/receipt.json"))
#: Two runs, each on a GPU of its own, and one run with a slot for each GPU.
TWO_GPUS = sorted(EVIDENCE.glob("*/two-gpus"))


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


def _receipt(folder: Path) -> Path:
    (found,) = folder.glob("*@*/*/*/*/receipt.json")
    return found


@pytest.mark.parametrize("folder", TWO_GPUS, ids=lambda path: path.parent.name)
def test_two_gpus_of_a_host_have_equal_bits(folder: Path) -> None:
    first, second = _receipt(folder / "first"), _receipt(folder / "second")
    result = alike(first, second)
    assert result.ok, result.lines
    used = [{process["gpu_uuid"] for process in _processes(receipt.parent)} for receipt in (first, second)]
    assert [len(uuids) for uuids in used] == [1, 1]
    assert used[0] != used[1]


@pytest.mark.parametrize("folder", TWO_GPUS, ids=lambda path: path.parent.name)
def test_two_slots_worked_at_once_each_on_its_own_gpu(folder: Path) -> None:
    receipt = _receipt(folder / "slots")
    result = verify(receipt)
    assert result.ok, result.lines
    probes = [read_json(path) for path in sorted((folder / "slots" / "slots").glob("*/probe.json"))]
    assert [probe["slot"] for probe in probes] == ["first", "second"]
    assert len({probe["device"]["id"] for probe in probes}) == len({probe["environment"]["key"] for probe in probes}) == 1
    spans: dict[str, list[tuple[float, float]]] = {probe["gpu_uuid"]: [] for probe in probes}
    for process in _processes(receipt.parent):
        began = datetime.fromisoformat(process["started"]).timestamp()
        spans[process["gpu_uuid"]].append((began, began + process["seconds"]))
    one, other = spans.values()
    both = sum(max(0.0, min(end, e) - max(begin, b)) for begin, end in one for b, e in other)
    assert both > 60


def _processes(key: Path) -> list[dict[str, Any]]:
    """Of everything that ran on a GPU for a receipt: when, for how long, and where."""
    found = []
    for path in sorted(key.rglob("*.json")):
        record = read_json(path)
        attempts = record.get("attempts", []) if path.name == "confirmation.json" else []
        found += [one["process"] for one in (record, *attempts) if (one.get("process") or {}).get("gpu_uuid")]
    return found


@pytest.mark.parametrize("path", sorted(EVIDENCE.glob("*/fuzz.json")), ids=lambda path: path.parent.name)
def test_the_fuzz_found_no_silent_difference(path: Path) -> None:
    found = read_json(path)
    assert found["sequences"] >= 500
    assert (found["silent_differences"], found["differences"]) == (0, [])
