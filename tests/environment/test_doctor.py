from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest

from exactgraph.doctor import Check, doctor
from exactgraph.environment import nvml
from exactgraph.refusal import UserError


def row(name: str, folder: Path) -> Check:
    return next(check for check in doctor(folder) if check.name == name)


def installed(name: str) -> bool:
    try:
        return bool(metadata.version(name))
    except metadata.PackageNotFoundError:
        return False


def test_only_what_is_not_installed_fails_on_this_machine(tmp_path: Path) -> None:
    checks = doctor(tmp_path)
    missing = [name for name in ("gguf", "snakemake") if not installed(name)]
    assert [check.name for check in checks if check.state == "fail"] == missing
    assert {"python", "torch", "snakemake", "gpu", "precision", "disk", "write access", "gpu locks"} <= {
        c.name for c in checks
    }
    assert all(check.sentence.endswith(".") for check in checks)


@pytest.mark.parametrize(
    ("versions", "name", "state"),
    [
        ({"torch": "2.10.1"}, "torch", "fail"),
        ({"torch": "2.11.0+cu130"}, "torch", "ok"),
        ({"transformers": "6.0.0"}, "transformers", "fail"),
        ({"transformers": "5.9.0"}, "transformers", "fail"),
        ({"snakemake": "9.28.0"}, "snakemake", "warn"),
    ],
)
def test_versions(versions: dict[str, str], name: str, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = metadata.version
    monkeypatch.setattr(metadata, "version", lambda asked: versions.get(asked) or real(asked))
    found = row(name, tmp_path)
    assert (found.state, versions[name] in found.sentence) == (state, True)


def test_a_driver_that_does_not_answer_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> list[nvml.Gpu]:
        raise UserError("The NVIDIA driver does not answer.")

    monkeypatch.setattr(nvml, "gpus", broken)
    assert row("gpu", tmp_path) == Check("gpu", "fail", "The NVIDIA driver does not answer.")
