"""pip's resolver, asked whether the lock files are what it would install. Wheels are looked into, not downloaded."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from locks import CLUSTER, CPU, CUDA, DEV, ROOT, pins
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

pytestmark = pytest.mark.slow

# Its author uploaded no wheel of this version: pip builds it, which takes no compiler.
FROM_SOURCE = "connection_pool"


@pytest.fixture(scope="module")
def pip(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The newest pip: that of an older Python downloads whole wheels to resolve them, gigabytes of CUDA."""
    folder = tmp_path_factory.mktemp("pip")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    command = [str(folder / "bin" / "python"), "-m", "pip"]
    subprocess.run([*command, "install", "--quiet", "--upgrade", "pip"], check=True)
    return command


def resolve(pip: list[str], report: Path, *arguments: str | Path) -> list[dict[str, Any]]:
    """The metadata of each package that pip would install."""
    options: list[str | Path] = ["--quiet", "--dry-run", "--ignore-installed", "--use-feature=fast-deps", "--report", report]
    done = subprocess.run([*pip, "install", *options, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [package["metadata"] for package in json.loads(report.read_text())["install"]]


def versions(packages: list[dict[str, Any]]) -> dict[str, str]:
    """Versions by name, without the tag of a local build (2.13.0+cpu)."""
    found: dict[str, str] = {canonicalize_name(package["name"]): package["version"].split("+")[0] for package in packages}
    found.pop("exactgraph", None)
    return found


@pytest.fixture(scope="module")
def cuda(pip: list[str], tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    report = tmp_path_factory.mktemp("cuda") / "report.json"
    return resolve(
        pip, report, "--requirement", CUDA, "--requirement", CLUSTER, "--requirement", DEV, f"{ROOT}[workflow,cluster,dev]"
    )


def test_cuda_resolves_to_its_pins(cuda: list[dict[str, Any]]) -> None:
    assert versions(cuda) == pins(CUDA, CLUSTER, DEV)


def test_all_that_torch_requires_for_cuda_is_pinned(cuda: list[dict[str, Any]]) -> None:
    pinned = pins(CUDA)
    (torch,) = (package for package in cuda if package["name"] == "torch")
    required = [Requirement(line) for line in torch["requires_dist"]]
    required = [one for one in required if one.marker is None or one.marker.evaluate({"extra": ""})]
    assert any(one.name.startswith("nvidia-") for one in required), "this build of torch is not for CUDA"
    for one in required:
        assert one.specifier.contains(Version(pinned[canonicalize_name(one.name)])), one


def test_cpu_resolves_to_its_pins(pip: list[str], tmp_path: Path) -> None:
    packages = resolve(pip, tmp_path / "report.json", "--requirement", CPU, "--requirement", DEV, f"{ROOT}[workflow,dev]")
    found = versions(packages)
    (torch,) = (package for package in packages if package["name"] == "torch")
    if not torch["version"].endswith("+cpu"):  # an index without builds for the CPU: this one brings CUDA's libraries
        found = {name: version for name, version in found.items() if name not in pins(CUDA).keys() - pins(CPU).keys()}
    assert found == pins(CPU, DEV)


@pytest.mark.parametrize("python", ["3.12", "3.13"])
def test_newer_pythons_find_every_pin_without_a_compiler(pip: list[str], python: str, tmp_path: Path) -> None:
    options = ["--no-deps", "--only-binary=:all:", f"--no-binary={FROM_SOURCE}", "--python-version", python]
    files = [argument for lock in (CUDA, CLUSTER, DEV) for argument in ("--requirement", lock)]
    found = resolve(pip, tmp_path / "report.json", *options, "--target", tmp_path / "none", *files)
    assert versions(found) == pins(CUDA, CLUSTER, DEV)
