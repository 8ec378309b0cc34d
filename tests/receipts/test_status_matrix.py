"""What ``exactgraph status`` prints."""

from __future__ import annotations

from exactgraph.receipts.status import Row
from exactgraph.report.matrix import status_table

OLD, NEW, ASKED = "0123456789abcdef", "fedcba9876543210", "aaaabbbbccccdddd"
ROWS = [
    Row("m@1", "nvidia-x", NEW, ASKED, "optimized", "step", "current", [], "r", "torch 2.13.0", "bf16, 6 x 64"),
    Row("m@2", "nvidia-x", NEW, ASKED, None, None, "missing", ["no run has finished"], None, "torch 2.13.0", "bf16, 6 x 64"),
    Row("m@1", "nvidia-x", OLD, ASKED, "not-faster", None, "stale", ["torch was 2.11.0, is 2.13.0"], "r", "torch 2.11.0"),
    Row("m@1", "nvidia-w", OLD, "?", None, None, "missing", ["slot w was not probed yet"]),
]


def test_the_matrix() -> None:
    found = [line.split() for line in status_table(ROWS).splitlines() if line.strip()]
    assert found.index(["nvidia-w"]) < found.index(["nvidia-x"])
    here = found[found.index(["nvidia-x"]) :]
    first = here.index(["01234567", "aaaabbbb", "m@1", "not-faster", "-", "stale"])
    assert here[first + 1] == ["fedcba98", "aaaabbbb", "m@1", "optimized", "step", "current"]
    assert here[first + 2] == ["m@2", "-", "-", "missing"], "keys that are those of the row above are not repeated"


def test_keys_and_reasons_in_words() -> None:
    lines = status_table(ROWS).splitlines()
    assert lines.count("environment fedcba98: torch 2.13.0") == 1
    assert "protocol aaaabbbb: bf16, 6 x 64" in lines
    assert "m@1 in 01234567/aaaabbbb, stale: torch was 2.11.0, is 2.13.0." in lines
    assert max(map(len, lines)) <= 110


def test_nothing() -> None:
    assert status_table([]) == "No receipts, and none wanted.\n"
