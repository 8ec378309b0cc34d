"""A small Slurm for the tests here: nodes with a fake GPU each, one of them drained."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest
from clusters import ROOT, Slurm

TOOL = ROOT / "tools" / "slurm"


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """Slurm, running; the tests are skipped where the machine cannot have one."""
    folder = tmp_path_factory.mktemp("slurm")
    started = subprocess.run([TOOL, "start", folder], capture_output=True, text=True, timeout=240, check=False)
    if started.returncode:
        pytest.skip(f"no Slurm on this machine: {started.stderr.strip()}")
    yield Slurm(folder)
    subprocess.run([TOOL, "stop", folder], timeout=60, check=True)
