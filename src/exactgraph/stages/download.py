"""``download``: a resolved source becomes a local model folder with a manifest."""

from __future__ import annotations

from pathlib import Path

from exactgraph.canonical import read_json
from exactgraph.sources.download import download


def run(resolved: Path, model_dir: Path, manifest: Path) -> None:
    """Fill ``model_dir`` and write ``model.json``."""
    download(read_json(resolved), model_dir, manifest)
