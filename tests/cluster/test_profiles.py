"""A profile named on the command line replaces the default one whole."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from clusters import ROOT

PROFILES = ROOT / "profiles"
NAMED = sorted(path.parent for path in PROFILES.glob("*/config.yaml") if path.parent.name != "default")


def read(folder: Path) -> dict[str, object]:
    return yaml.safe_load((folder / "config.yaml").read_text())


@pytest.mark.parametrize("folder", NAMED, ids=lambda folder: folder.name)
def test_each_sets_what_the_default_one_sets(folder: Path) -> None:
    profile, default = read(folder), read(PROFILES / "default")
    assert profile.keys() >= default.keys()
    assert profile["resources"].keys() >= default["resources"].keys()
    assert profile["retries"] >= 1


def test_retries_are_a_matter_of_profiles() -> None:
    assert not [path for path in (ROOT / "workflow").rglob("*.smk") if "retries" in path.read_text()]


@pytest.mark.parametrize("folder", NAMED, ids=lambda folder: folder.name)
def test_every_job_gets_as_many_cores_as_every_other(folder: Path) -> None:
    """Rules have threads of their own, and the number of threads is a fact of the environment key."""
    assert read(folder)["default-resources"]["cpus_per_task"] >= 1
