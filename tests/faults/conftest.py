"""Faults go through the whole project, so their tests use the helpers of its rooms."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
sys.path += [str(TESTS / room) for room in ("workflow", "receipts")]

from project import Project  # noqa: E402


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    """A project with pretended stages in which nothing has run yet."""
    folder = tmp_path / "project"
    folder.mkdir()
    project = Project(folder)
    yield project
    project.end()
