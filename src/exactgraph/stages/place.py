"""Where a stage works: the folder of its key, and what the folders above it hold."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exactgraph.canonical import read_json


@dataclass(frozen=True)
class Place:
    """The folder ``<root>/<model>@<commit>/<device>/<environment>/<protocol>``."""

    folder: Path

    @property
    def root(self) -> Path:
        """The folder of all results."""
        return self.folder.parents[3]

    @property
    def model_dir(self) -> Path:
        return self.folder.parents[2] / "model"

    def manifest(self) -> dict[str, Any]:
        return self._read(self.folder.parents[2] / "model.json")

    def environment(self) -> dict[str, Any]:
        return self._read(self.folder.parent / "environment.json")

    def protocol(self) -> dict[str, Any]:
        return self._read(self.folder / "protocol.json")

    def frozen(self) -> dict[str, Any]:
        return self._read(self.folder / "frozen.json")

    def baseline_path(self, attention: str, run: int) -> Path:
        """Runs of the default backend lie in ``baseline/``, those of a pin in a folder under its name."""
        folder = self.folder / "baseline"
        return (folder if attention == "default" else folder / attention) / f"run{run}.json"

    def plan_path(self, candidate: str) -> Path:
        return self.folder / "candidates" / candidate / "plan.json"

    def validation_path(self, candidate: str) -> Path:
        return self.folder / "candidates" / candidate / "validation.json"

    def profile(self) -> dict[str, Any]:
        return self._read(self.folder / "profile.json")

    def plan(self, candidate: str) -> dict[str, Any]:
        return self._read(self.plan_path(candidate))

    def ranking(self) -> dict[str, Any]:
        return self._read(self.folder / "ranking.json")

    @staticmethod
    def _read(path: Path) -> dict[str, Any]:
        value: dict[str, Any] = read_json(path)
        return value
