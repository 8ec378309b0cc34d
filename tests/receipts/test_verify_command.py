"""``exactgraph verify`` and ``exactgraph table`` on evidence as a run leaves it: exit code 0 for yes, 1 for no."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from evidence_world import World

from exactgraph.receipts.statement import write


def command(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    done = [sys.executable, "-m", "exactgraph", *map(str, arguments)]
    return subprocess.run(done, capture_output=True, text=True, check=False)


@pytest.fixture
def receipt(world: World) -> Path:
    key_dir = world.write()
    write(key_dir)
    return key_dir / "receipt.json"


def test_a_true_receipt_is_verified(receipt: Path) -> None:
    done = command("verify", receipt)
    assert done.returncode == 0, done
    lines = done.stdout.splitlines()
    assert lines
    assert not [line for line in lines if line.startswith("no: ")]


def test_altered_evidence_is_not(receipt: Path) -> None:
    path = receipt.parent / "candidates" / "step" / "validation.json"
    path.write_bytes(path.read_bytes().replace(b'"ratio":5.9', b'"ratio":6.9', 1))
    done = command("verify", receipt, "--json")
    assert done.returncode == 1, done
    answer = json.loads(done.stdout)
    assert answer["ok"] is False
    assert any("candidates/step/validation.json" in line for line in answer["lines"] if line.startswith("no: "))


def test_a_receipt_as_a_table(receipt: Path) -> None:
    done = command("table", receipt)
    assert done.returncode == 0, done
    assert "step" in done.stdout
    assert "\x1b" not in done.stdout, "colours belong on a terminal"
