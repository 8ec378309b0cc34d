"""Which of the two lock files ``make`` installs from."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from locks import ROOT

CHOOSE = ROOT / "tools" / "torch-build"


@pytest.fixture
def machine(tmp_path: Path) -> dict[str, str]:
    """An environment whose PATH has what ``make`` needs and no driver."""
    for tool in ("sh", "cat", "cut", "sha256sum", "make"):
        found = shutil.which(tool)
        assert found
        (tmp_path / tool).symlink_to(found)
    return {"PATH": str(tmp_path)}


def with_driver(machine: dict[str, str]) -> dict[str, str]:
    driver = Path(machine["PATH"]) / "nvidia-smi"
    driver.write_text("#!/bin/sh\n")
    driver.chmod(0o755)
    return machine


def choose(environment: dict[str, str]) -> str:
    return subprocess.run([CHOOSE], env=environment, capture_output=True, text=True, check=True).stdout.strip()


def test_the_driver_decides(machine: dict[str, str]) -> None:
    assert choose(machine) == "cpu"
    assert choose(with_driver(machine)) == "cuda"


def test_the_variable_overrules_it(machine: dict[str, str]) -> None:
    assert choose(machine | {"EXACTGRAPH_TORCH": "cuda"}) == "cuda"
    assert choose(with_driver(machine) | {"EXACTGRAPH_TORCH": "cpu"}) == "cpu"
    assert choose(machine | {"EXACTGRAPH_TORCH": ""}) == "cuda"


def installs(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["make", "--dry-run", "--always-make", "install", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_make_installs_what_was_chosen(machine: dict[str, str]) -> None:
    for ways in (installs(machine | {"EXACTGRAPH_TORCH": "cuda"}), installs(machine, "EXACTGRAPH_TORCH=cuda")):
        assert "tools/make-venv .venv requirements-cuda.txt requirements-dev.txt" in ways.stdout
    cpu, cuda = installs(machine).stdout, installs(with_driver(machine)).stdout
    assert "tools/make-venv .venv requirements-cpu.txt requirements-dev.txt" in cpu
    assert "tools/make-venv .venv requirements-cuda.txt requirements-dev.txt" in cuda
    # Another name of the stamp: a driver that was installed later is noticed.
    assert cpu.splitlines()[-1] != cuda.splitlines()[-1]


def test_another_value_is_refused_with_a_sentence(machine: dict[str, str]) -> None:
    done = installs(machine | {"EXACTGRAPH_TORCH": "rocm"})
    assert done.returncode
    assert "EXACTGRAPH_TORCH is 'rocm'. Set it to cuda or to cpu" in done.stderr
    assert not done.stdout


def test_the_variable_is_documented() -> None:
    assert os.access(CHOOSE, os.X_OK)
    for page in ("README.md", "docs/cluster.md"):
        assert "EXACTGRAPH_TORCH=cuda make install" in (ROOT / page).read_text(), page
