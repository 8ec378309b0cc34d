"""A running Slurm, and projects whose jobs go through it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from exactgraph.canonical import write_json
from exactgraph.workflow.look import JOB_NAME

ROOT = Path(__file__).resolve().parents[2]
TINY = "random:tiny-llama?seed=0"
SHORT: dict[str, Any] = {"model": TINY, "prompts": 1, "new_tokens": 4, "repetitions": 1, "long_run": 12, "step_lengths": 8}
# Minutes matter on a cluster and seconds here; the rest of the profile is as it is shipped.
QUICK = ("--slurm-init-seconds-before-status-checks", "1", "--seconds-between-status-checks", "1", "--latency-wait", "10")


@dataclass(frozen=True)
class Step:
    """What a node did for one job: ``start`` and ``end`` in seconds."""

    gpu: str
    start: float
    end: float


@dataclass(frozen=True)
class Slurm:
    """The Slurm that ``tools/slurm`` started with its state in ``folder``."""

    folder: Path

    def steps(self, node: str) -> list[Step]:
        """The steps of Snakemake's jobs on ``node`` that have ended, as it wrote them down; not the looks at it before."""
        begun: dict[str, float] = {}
        steps = []
        for line in (self.folder / "steps.log").read_text().splitlines():
            moment, when, job, where, gpu, name = line.split()
            if where != node or name == JOB_NAME:
                continue
            if moment == "prolog":
                begun[job] = float(when)
            else:
                steps.append(Step(gpu, begun[job], float(when)))
        return steps

    def hang(self, node: str) -> None:
        """The next job on ``node`` hangs, once."""
        (self.folder / f"stuck.{node}").touch()

    def running(self, node: str) -> str | None:
        """The job on ``node``, once its step hangs there."""
        if (self.folder / f"stuck.{node}").exists():
            return None
        asked = ["squeue", "--noheader", "--states=running", f"--nodelist={node}", "--format=%i"]
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip() or None


def serialised(steps: list[Step]) -> bool:
    """Whether no two of ``steps`` overlap."""
    ordered = sorted(steps, key=lambda step: step.start)
    return all(earlier.end <= later.start for earlier, later in pairwise(ordered))


def overlap(some: list[Step], others: list[Step]) -> float:
    """Seconds in which one of ``some`` and one of ``others`` ran at once, where each is serialised."""
    return sum(max(0.0, min(one.end, other.end) - max(one.start, other.start)) for one in some for other in others)


class Project:
    """The project as a user has it after cloning, configured for these slots and a tiny model."""

    def __init__(self, folder: Path, devices: dict[str, Any]) -> None:
        self.folder = folder
        self.started: list[subprocess.Popen[str]] = []
        for name in ("Snakefile", "workflow", "profiles", "src"):
            source = ROOT / name
            (shutil.copytree if source.is_dir() else shutil.copy)(source, folder / name)
        protocol = {"baselines": 2}
        config = {"models": [TINY], "devices": devices, "candidates": ["step"], "rehearsal": SHORT, "protocol": protocol}
        write_json(folder / "config.yaml", config)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Snakemake with the shipped profile, running."""
        process = subprocess.Popen(
            [sys.executable, "-m", "snakemake", "--workflow-profile", "profiles/slurm", *QUICK, *arguments],
            cwd=self.folder,
            env=self.variables(),
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.started.append(process)
        return process

    def end(self) -> None:
        """Kill what is still running."""
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate()

    def variables(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(self.folder / "src"), "NO_COLOR": "1"}

    def verify(self, receipt: Path) -> None:
        command = [sys.executable, "-m", "exactgraph", "verify", str(receipt)]
        subprocess.run(command, cwd=self.folder, env=self.variables(), check=True)


def wait_for(seen: Callable[[], str | None], seconds: float = 90) -> str:
    """What ``seen`` returns once it returns something."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := seen():
            return found
        time.sleep(0.2)
    raise TimeoutError(f"{seen} saw nothing in {seconds} s")
