"""A tiny model, downloaded as the workflow does it, and a CPU to bench it on wherever the tests run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from exactgraph.canonical import write_json
from exactgraph.sources.download import download
from exactgraph.sources.resolve import resolve

SPEC = "random:tiny-llama?seed=0"


@pytest.fixture(scope="session")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifacts folder that holds the source :data:`SPEC`."""
    root = tmp_path_factory.mktemp("bench") / "artifacts"
    resolved = resolve(SPEC)
    write_json(root / "sources" / f"{resolved['model']}.json", resolved)
    folder = root / f"{resolved['model']}@{resolved['commit']}"
    download(resolved, folder / "model", folder / "model.json")
    return root


@pytest.fixture(scope="session")
def model_dir(artifacts: Path) -> Path:
    return next(artifacts.glob("*@*/model"))


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
