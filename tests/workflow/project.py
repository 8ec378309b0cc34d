"""A copy of the workflow in a folder of its own, with stages that only pretend: real planning, no model, no GPU."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from exactgraph.canonical import read_json, write_json

ROOT = Path(__file__).resolve().parents[2]
FAKE = Path(__file__).parent / "fake_stages" / "exactgraph"
REAL = (
    "__init__.py",
    "canonical.py",
    "refusal.py",
    "workflow",
    "environment/device.py",
    "environment/precision.py",
    "sources/own_class.py",
)
MODEL = "pypi:tiny==1"
SLUG = "pypi-tiny-1"
CONFIG: dict[str, Any] = {
    "models": [MODEL],
    "devices": {"local": {}},
    "candidates": ["C022", "step"],
    "rehearsal": {"model": MODEL},
}

CANDIDATES = ("null", "wrong-ulp", "wrong-late", "C022", "step")
RUN_ALL = {
    *("probe local", f"resolve {MODEL}", f"download {SLUG}", "environment", "protocol"),
    *("baseline 1", "baseline 2", "baseline 3", "freeze", "profile", "rank", "confirm", "receipt", "report"),
    *(f"{stage} {candidate}" for stage in ("build", "validate") for candidate in CANDIDATES),
}


class Project:
    """A folder as a user has it after cloning, on a pretended machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.package = folder / "src" / "exactgraph"
        for name in ("Snakefile", "workflow", "profiles"):
            source = ROOT / name
            (shutil.copytree if source.is_dir() else shutil.copy)(source, folder / name)
        shutil.copytree(FAKE, self.package)
        for name in REAL:
            source = ROOT / "src" / "exactgraph" / name
            (shutil.copytree if source.is_dir() else shutil.copy)(source, self.package / name)
        self.started: list[subprocess.Popen[str]] = []
        self.configure()
        self.machine(gpu="nvidia-fake-sm90", torch="2.13.0")

    def machine(self, **changes: Any) -> None:
        """Change the pretended machine."""
        file = self.folder / "machine.json"
        write_json(file, {**(read_json(file) if file.exists() else {}), **changes})

    @classmethod
    def copy_of(cls, other: Path, folder: Path) -> Project:
        """A project with everything in it that ``other`` has."""
        shutil.copytree(other, folder, symlinks=True)
        project = cls.__new__(cls)
        project.started = []
        project.folder, project.package = folder, folder / "src" / "exactgraph"
        return project

    def configure(self, **changes: Any) -> None:
        """Write the configuration, with these entries changed (JSON is YAML)."""
        write_json(self.folder / "config.yaml", {**CONFIG, **changes})

    def edit(self, module: str) -> None:
        """An edit of a file of the package that changes nothing but its bytes."""
        with (self.package / module).open("a") as file:
            file.write("\n# edited\n")

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """The plain command, running."""
        (self.folder / "ran.txt").unlink(missing_ok=True)
        variables = {**os.environ, "PYTHONPATH": str(self.folder / "src"), "NO_COLOR": "1", "HOME": str(self.folder)}
        variables.pop("EXACTGRAPH_PARENT", None)
        process = subprocess.Popen(
            [sys.executable, "-m", "snakemake", "--cores", "1", *(arguments or ("confirm",))],
            cwd=self.folder,
            env=variables,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            process_group=0,
            # Whoever runs the tests in the background may ignore Ctrl-C, and that is inherited.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        self.started.append(process)
        return process

    def end(self) -> None:
        """Kill what is still running; stages end with the run that started them."""
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate()

    def run(self, *arguments: str, code: int = 0) -> str:
        """What the plain command prints; it must end with ``code``."""
        process = self.start(*arguments)
        printed, _ = process.communicate(timeout=120)
        assert process.returncode == code, printed
        return printed

    def ran(self) -> set[str]:
        """The stages that the last command ran; none may have run twice."""
        names = self.ran_in_order()
        assert len(set(names)) == len(names), names
        return set(names)

    def ran_in_order(self) -> list[str]:
        """The stages that the last command ran, in the order in which they began."""
        file = self.folder / "ran.txt"
        return file.read_text().splitlines() if file.exists() else []

    def find(self, name: str) -> Path:
        """The one file of this name (a path below the key's folder) among the artifacts."""
        (found,) = (self.folder / "artifacts").glob(f"**/{name}")
        return found
