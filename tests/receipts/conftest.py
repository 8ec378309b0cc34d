from __future__ import annotations

from pathlib import Path

import pytest
from evidence_world import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A run on an invented GPU in which ``step`` is confirmed."""
    return World(tmp_path / "artifacts")


@pytest.fixture
def rehearsal(tmp_path: Path) -> World:
    """The same on a CPU, untimed."""
    return World(tmp_path / "artifacts", rehearsal=True)
