"""A disk that is full: a sentence, whole files or none, and a run that goes on once there is space again."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from project import RUN_ALL, Project

from exactgraph.canonical import read_json

FULL = """
import errno, os

def full(handle):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

os.fsync = full
"""

Disk = Callable[[Path, str], None]


@pytest.fixture
def disk() -> Iterator[Disk]:
    """Puts a disk of the given size on a folder, or makes the one that is there larger."""
    mounted: list[Path] = []

    def mount(folder: Path, size: str) -> None:
        options = f"remount,size={size}" if folder in mounted else f"size={size}"
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(folder)], capture_output=True, check=False)
        if done.returncode:
            pytest.skip("no disk can be mounted here")
        mounted.append(folder)

    yield mount
    for folder in set(mounted):
        subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(FULL)
    out = tmp_path / "out" / "source.json"
    command = [sys.executable, "-m", "exactgraph", "resolve", "random:tiny-llama?seed=0", "--out", str(out)]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "exactgraph: The disk is full: free some space and run again. What was there is whole.\n"
    assert list(out.parent.iterdir()) == []


def test_a_model_that_does_not_fit_says_so_and_leaves_nothing(tmp_path: Path, disk: Disk) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    disk(folder, "100k")
    resolved = folder / "source.json"
    exactgraph = [sys.executable, "-m", "exactgraph"]
    subprocess.run([*exactgraph, "resolve", "random:tiny-llama?seed=0", "--out", str(resolved)], check=True)
    download = ["download", str(resolved), "--out-dir", str(folder / "model"), "--manifest", str(folder / "model.json")]
    done = subprocess.run([*exactgraph, *download], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "The disk is full" in done.stderr
    assert "Traceback" not in done.stderr
    assert [entry.name for entry in folder.iterdir()] == ["source.json"]
    disk(folder, "10m")
    subprocess.run([*exactgraph, *download], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("size", ["20k", "44k", "72k", "120k"])
def test_a_run_goes_on_where_the_disk_was_full(project: Project, disk: Disk, size: str) -> None:
    artifacts = project.folder / "artifacts"
    artifacts.mkdir()
    disk(artifacts, size)
    printed = project.run(code=1)
    assert "No space left on device" in printed
    before = project.ran()
    for file in artifacts.rglob("*.json"):
        read_json(file)
    assert not list(artifacts.rglob(".*.json.*"))
    disk(artifacts, "10m")
    project.run()
    assert before | project.ran() == RUN_ALL
    assert len(before & project.ran()) == printed.count("Error in rule "), "only what failed runs twice"


def test_a_folder_that_takes_nothing(project: Project) -> None:
    (project.folder / "artifacts").write_text("a file where the folder belongs")
    assert "Nothing can be written to artifacts/ (File exists): free some space" in project.run(code=1)
