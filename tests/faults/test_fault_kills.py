"""``kill -9`` in every rule, one after the other: each run goes on where the last one died, to the receipt of a run that was
never disturbed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from project import ROOT
from real_key import TINY

from exactgraph.canonical import read_json, write_json

# At the last moment before a file takes its name. ``KILL_RUN`` ends the whole run as a power cut would, else the stage alone
# dies, as it does where memory runs out.
HOOK = """
import os
import signal

def deadly(rename):
    def wrapped(source, target, **rest):
        for wanted in os.environ.get("KILL_AT", "").split():
            if str(target).endswith(wanted):
                with open(os.environ["KILL_LOG"], "a") as log:
                    log.write(wanted + "\\n")
                if "KILL_RUN" in os.environ:
                    os.killpg(0, signal.SIGKILL)
                os.kill(os.getpid(), signal.SIGKILL)
        return rename(source, target, **rest)
    return wrapped

os.replace, os.rename = deadly(os.replace), deadly(os.rename)
"""

# What each rule writes; ``attempt.json`` is of a process that a confirmation started.
WRITES = (
    "/slots/local/probe.json",
    "/sources/random-tiny-llama-seed0.json",
    "/environment.json",
    "/protocol.json",
    "/model",
    "/model.json",
    "/baseline/run2.json",
    "/reference.json",
    "/frozen.json",
    "/skips.json",
    "/profile.json",
    "/candidates/C022/plan.json",
    "/candidates/C022/validation.json",
    "/order.json",
    "/ranking.json",
    "/attempt.json",
    "/confirmation.json",
    "/receipt.json",
    "/report/report.md",
    "/report/report.html",
)

# Baselines are listed as names and digests; shares are of the host's time.
VOLATILE = {"evidence", "sha256", "runs", "share"}


def clone(folder: Path) -> Path:
    """The project as a user has it after cloning, set to rehearse with one candidate."""
    for name in ("Snakefile", "workflow", "profiles", "src"):
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, folder / name)
    write_json(folder / "config.yaml", {"models": [TINY], "candidates": ["C022"], "rehearsal": {"model": TINY}})
    (folder / "hook").mkdir()
    (folder / "hook" / "sitecustomize.py").write_text(HOOK)
    return folder


def snakemake(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(folder / "src"), str(folder / "hook")])
    return subprocess.run(
        [sys.executable, "-m", "snakemake", "--cores", "1", "confirm"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "NO_COLOR": "1", "CUDA_VISIBLE_DEVICES": "", **variables},
        text=True,
        capture_output=True,
        check=False,
        process_group=0,
    )


def named(folder: Path) -> list[str]:
    """What has its name, below the artifacts; hidden is what is being made."""
    found = (path.relative_to(folder) for path in (folder / "artifacts").rglob("*"))
    return [f"/{path}" for path in found if not any(part.startswith(".") for part in path.parts)]


def only(folder: Path, name: str) -> Path:
    (found,) = folder.glob(f"artifacts/*@*/*/*/*/{name}")
    return found


def timeless(value: Any) -> Any:
    """A receipt without what two runs of the same never share: times, and digests of files that name times and processes."""
    if isinstance(value, dict):
        return {name: timeless(entry) for name, entry in value.items() if name not in VOLATILE}
    return [timeless(entry) for entry in value] if isinstance(value, list) else value


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_run_that_is_killed_in_every_rule_ends_with_the_same_receipt(tmp_path: Path) -> None:
    (tmp_path / "calm").mkdir()
    (tmp_path / "killed").mkdir()
    calm, killed = clone(tmp_path / "calm"), clone(tmp_path / "killed")
    done = snakemake(calm)
    assert done.returncode == 0, done.stdout + done.stderr
    log, left, runs = tmp_path / "killed.log", list(WRITES), 0
    while left:
        runs += 1
        whole_run = {"KILL_RUN": "1"} if runs % 2 else {}
        died = snakemake(killed, KILL_AT=" ".join(left), KILL_LOG=str(log), **whole_run)
        assert died.returncode == (-signal.SIGKILL if whole_run else 1), (left, died.stdout + died.stderr)
        hit = log.read_text().split()
        log.unlink()
        assert not [path for path in named(killed) if path.endswith(tuple(hit))], hit
        left = [target for target in left if target not in hit]
    assert runs > len(WRITES) // 2
    done = snakemake(killed)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Nothing to be done" in snakemake(killed).stderr
    assert not list((killed / "artifacts").rglob(".*.part"))
    receipts = [read_json(only(folder, "receipt.json")) for folder in (calm, killed)]
    assert timeless(receipts[0]) == timeless(receipts[1])
    assert receipts[0]["predicate"]["evidence"].keys() == receipts[1]["predicate"]["evidence"].keys()
    assert only(calm, "frozen.json").read_bytes() == only(killed, "frozen.json").read_bytes()
    verify = [sys.executable, "-m", "exactgraph", "verify", str(only(killed, "receipt.json"))]
    subprocess.run(verify, env={**os.environ, "PYTHONPATH": str(killed / "src")}, check=True)
