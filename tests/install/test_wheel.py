"""The wheel alone is the runtime: it asks for no Snakemake, and optimises where there is none."""

from __future__ import annotations

import email
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from locks import ROOT
from packaging.requirements import Requirement


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*build, "--wheel-dir", str(folder), str(source)], check=True)
    return next(folder.glob("exactgraph-*.whl"))


def test_it_asks_for_no_snakemake(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
    wanted = [Requirement(line) for line in metadata.get_all("Requires-Dist", [])]
    plain = {need.name for need in wanted if need.marker is None or need.marker.evaluate({"extra": ""})}
    assert {"torch", "transformers"} <= plain
    assert not any(name.startswith("snakemake") for name in plain)
    assert any(need.name == "snakemake" and need.marker and need.marker.evaluate({"extra": "workflow"}) for need in wanted)


PROGRAM = """
import sys, warnings


class NoSnakemake:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0].startswith("snakemake"):
            raise ModuleNotFoundError(f"No module named {name!r}")


sys.meta_path.insert(0, NoSnakemake())
sys.path.insert(0, sys.argv[1])
import exactgraph
assert exactgraph.__file__.startswith(sys.argv[1]), exactgraph.__file__
import torch
from transformers import LlamaConfig, LlamaForCausalLM
sizes = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, vocab_size=64)
model = LlamaForCausalLM(LlamaConfig(**sizes)).eval()
model.generation_config.eos_token_id = None
ids = torch.arange(5)[None]
expected = model.generate(ids, max_new_tokens=4, do_sample=False)
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    assert exactgraph.optimize(model, sys.argv[2]) is model
assert any(isinstance(entry.message, exactgraph.NotOptimizedWarning) for entry in said)
assert model.exactgraph.refusal.reason == sys.argv[3], model.exactgraph
assert torch.equal(model.generate(ids, max_new_tokens=4, do_sample=False), expected)

from exactgraph.candidates.base import Context
from exactgraph.candidates.registry import candidate
from exactgraph.capture import capturer_for
from exactgraph.runtime.session import Session
context, step = Context(capturer_for(model.device), 8, 8, 16), candidate("step")
with Session(model, step, step.plan(model, context), context, "default") as session:
    assert torch.equal(model.generate(ids, max_new_tokens=4, do_sample=False), expected)
    assert session.last.steps.captured == 3
assert not [name for name in sys.modules if name.startswith("snakemake")]
"""


@pytest.mark.parametrize("store", ["empty", "evidence"])
def test_it_optimises_without_snakemake(wheel: Path, tmp_path: Path, store: str) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    (tmp_path / "empty").mkdir()
    # With receipts of another device, everything that reads and compares receipts is used, the schema among it.
    place, reason = (tmp_path / "empty", "no-receipt") if store == "empty" else (ROOT / "docs" / "evidence", "other-device")
    if store == "evidence":
        place = min(place.glob("*/*@*/*/*/*/receipt.json")).parent
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "site"), str(place), reason]
    ended = subprocess.run(
        command,
        cwd=tmp_path,
        env={"CUDA_VISIBLE_DEVICES": "", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
