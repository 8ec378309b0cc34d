"""Projects to plan in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from project import RUN_ALL, Project


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    """A project in which nothing has run yet."""
    project = Project(tmp_path)
    yield project
    project.end()


@pytest.fixture(scope="session")
def first_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a project whose first run is done; copied, never worked in."""
    project = Project(tmp_path_factory.mktemp("finished"))
    project.run()
    assert project.ran() == RUN_ALL
    return project.folder


@pytest.fixture
def finished(first_run: Path, tmp_path: Path) -> Iterator[Project]:
    """A project whose first run is done and in which nothing has changed since."""
    project = Project.copy_of(first_run, tmp_path / "project")
    yield project
    project.end()
