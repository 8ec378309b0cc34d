"""The real stages from nothing to a receipt, on a small random model."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from project import ROOT

from exactgraph.canonical import read_json, write_json

MODEL = "random:tiny-llama?seed=0"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_from_nothing_to_a_receipt_and_no_further(tmp_path: Path) -> None:
    for name in ("Snakefile", "workflow", "profiles", "src"):
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, tmp_path / name)
    write_json(tmp_path / "config.yaml", {"models": [MODEL], "rehearsal": {"model": MODEL}})

    first = snakemake(tmp_path)
    (receipt,) = tmp_path.glob("artifacts/*/*/*/*/receipt.json")
    predicate = read_json(receipt)["predicate"]
    if predicate["status"] == "rehearsal":
        assert first.count("REHEARSAL") >= 2
    assert predicate["confirmation"]["confirmed"] in ("step", "C022")
    assert "Nothing to be done" in snakemake(tmp_path)
    subprocess.run(
        [sys.executable, "-m", "exactgraph", "verify", str(receipt)], cwd=tmp_path, env=variables(tmp_path), check=True
    )


def snakemake(folder: Path) -> str:
    command = [sys.executable, "-m", "snakemake", "--cores", "1", "confirm"]
    done = subprocess.run(command, cwd=folder, env=variables(folder), text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def variables(folder: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(folder / "src"), "NO_COLOR": "1"}
