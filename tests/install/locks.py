"""The lock files, read as pip reads them."""

from __future__ import annotations

from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
CPU, CUDA, CLUSTER, DEV = (ROOT / f"requirements-{name}.txt" for name in ("cpu", "cuda", "cluster", "dev"))
LOCKS = (CPU, CUDA, CLUSTER, DEV)


def lines(lock: Path) -> list[str]:
    return [line for line in lock.read_text().splitlines() if not line.startswith("#")]


def pins(*locks: Path) -> dict[str, str]:
    """Version of each package that the files pin, under its name as the index writes it."""
    found: dict[str, str] = {}
    for lock in locks:
        for line in lines(lock):
            requirement = Requirement(line)
            (specifier,) = requirement.specifier
            found[canonicalize_name(requirement.name)] = specifier.version
    return found
