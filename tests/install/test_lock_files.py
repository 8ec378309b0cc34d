"""What the lock files look like, and that they are of this ``pyproject.toml``."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from locks import CLUSTER, CPU, CUDA, DEV, LOCKS, ROOT, lines, pins
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

OF_CUDA = re.compile(r"(?!nvidia-ml-py$)(nvidia|cuda)-.+|triton")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_every_line_is_one_exact_pin(lock: Path) -> None:
    """Hence no option of pip and no address either: which index is asked is the machine's affair."""
    assert lines(lock)
    assert [line for line in lines(lock) if not re.fullmatch(r"[A-Za-z0-9._-]+={2,3}[0-9][0-9a-z.]*", line)] == []
    assert len(pins(lock)) == len(lines(lock)), "a package is pinned twice"


def test_the_two_differ_in_cuda_alone() -> None:
    cpu, cuda = pins(CPU), pins(CUDA)
    assert {name for name in cuda if OF_CUDA.fullmatch(name)} == cuda.keys() - cpu.keys()
    assert {"triton", "nvidia-cublas", "nvidia-nccl-cu13"} <= cuda.keys() - cpu.keys()
    assert {name: cuda[name] for name in cpu} == cpu


def test_no_cpu_build_satisfies_the_pin_for_cuda() -> None:
    def torch(lock: Path) -> Requirement:
        return next(requirement for line in lines(lock) if (requirement := Requirement(line)).name == "torch")

    version = pins(CUDA)["torch"]
    assert [torch(CUDA).specifier.contains(build) for build in (version, f"{version}+cpu")] == [True, False]
    assert [torch(CPU).specifier.contains(build) for build in (version, f"{version}+cpu")] == [True, True]


@pytest.mark.parametrize(
    ("locks", "wanted"),
    [
        ((CPU,), PROJECT["dependencies"] + EXTRAS["workflow"]),
        ((CUDA,), PROJECT["dependencies"] + EXTRAS["workflow"]),
        ((CUDA, CLUSTER), EXTRAS["cluster"]),
        ((CUDA, DEV), EXTRAS["dev"]),
    ],
    ids=["cpu", "cuda", "cluster", "dev"],
)
def test_what_the_project_asks_for_is_pinned_as_it_asks(locks: tuple[Path, ...], wanted: list[str]) -> None:
    pinned = pins(*locks)
    for requirement in map(Requirement, wanted):
        version = pinned.get(canonicalize_name(requirement.name))
        assert version, f"{requirement.name} is not pinned: run make lock"
        assert requirement.specifier.contains(version), f"{version} is not {requirement}: run make lock"


def test_what_is_added_replaces_no_pin() -> None:
    workflow, cluster, dev = pins(CUDA), pins(CLUSTER), pins(DEV)
    assert not workflow.keys() & (cluster.keys() | dev.keys())
    assert {name: dev[name] for name in cluster.keys() & dev.keys()} == {
        name: cluster[name] for name in cluster.keys() & dev.keys()
    }
