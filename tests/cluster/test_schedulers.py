"""The scripts of profiles/cluster-generic and profiles/kubernetes, against stand-ins for the schedulers' commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from clusters import ROOT

SCHEDULER = ROOT / "profiles" / "cluster-generic" / "scheduler.py"
KUBECTL = ROOT / "profiles" / "kubernetes" / "kubectl.py"
ASKED = {
    "slurm_partition": "gpu",
    "slurm_account": "lab",
    "gpu_model": "h200",
    "runtime": 60,
    "mem_mb": 2048,
    "cpus_per_task": 4,
}

# Each takes the script from its input, runs it like a job 41, and writes down how it was called.
SUBMITS = {
    "LSF": ("bsub", "LSB_JOBID", "Job <41> is submitted to queue <gpu>."),
    "SGE": ("qsub", "JOB_ID", 'Your job 41 ("STDIN") has been submitted'),
    "PBS": ("qsub", "PBS_JOBID", "41"),
}
ALIVE = {"LSF": ("bjobs", "PEND"), "SGE": ("qstat", "job_number: 41"), "PBS": ("qstat", "    job_state = Q")}
GONE = {
    "LSF": ("bjobs", "EXIT"),
    "SGE": ("qstat", "Following jobs do not exist: 41"),
    "PBS": ("qstat", "qstat: Unknown Job Id 41"),
}
WORDS = {
    "LSF": ["-q gpu -P lab", "-W 60", "num=1:gmodel=h200", "mem=2048MB"],
    "SGE": ["-q gpu -P lab", "h_rt=3600", "gpu_type=h200", "mem_free=2048M"],
    "PBS": ["-q gpu -A lab", "walltime=3600", "gpu_model=h200", "mem=2048mb"],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "bin").mkdir()
    return tmp_path


@pytest.fixture(params=["LSF", "SGE", "PBS"])
def kind(request: pytest.FixtureRequest, folder: Path) -> str:
    """A machine with this scheduler's commands."""
    name, variable, said = SUBMITS[request.param]
    command(folder, name, f"echo \"$@\" >submitted\n{variable}=41 sh -s </dev/stdin >/dev/null 2>&1\necho '{said}'")
    if request.param == "SGE":
        command(folder, "qconf", "")
    return str(request.param)


def command(folder: Path, name: str, text: str) -> None:
    file = folder / "bin" / name
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)


def jobscript(folder: Path, text: str, resources: dict[str, Any] = ASKED) -> Path:
    file = folder / "snakejob.sh"
    file.write_text(f"#!/bin/sh\n# properties = {json.dumps({'resources': resources})}\n{text}\n")
    return file


def call(folder: Path, script: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    return run(folder, str(script), *map(str, arguments))


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "PATH": f"{folder / 'bin'}:/usr/bin:/bin"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=variables, capture_output=True, text=True, timeout=60, check=False
    )


def submitted(folder: Path, text: str) -> str:
    done = call(folder, SCHEDULER, "submit", jobscript(folder, text))
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(("text", "status"), [("true", "success"), ("exit 3", "failed")])
def test_a_job_that_ended_says_how(kind: str, folder: Path, text: str, status: str) -> None:
    job = submitted(folder, text)
    assert job == "41"
    asked = (folder / "submitted").read_text()
    assert [word for word in WORDS[kind] if word not in asked] == []
    assert call(folder, SCHEDULER, "status", job).stdout.strip() == status


def test_a_slot_without_fields_asks_for_less(kind: str, folder: Path) -> None:
    script = jobscript(folder, "true", {"runtime": 60, "mem_mb": 2048, "cpus_per_task": 4})
    assert call(folder, SCHEDULER, "submit", script).stdout.strip() == "41"
    asked = (folder / "submitted").read_text()
    assert "h200" not in asked
    assert "-q" not in asked


def test_a_job_that_waits_is_running_until_patience_ends(kind: str, folder: Path) -> None:
    job = submitted(folder, "true")
    for name in ("started", "ended"):
        (folder / f".snakemake/cluster/{job}.{name}").unlink()
    name, said = ALIVE[kind]
    command(folder, name, f"echo '{said}'")
    assert call(folder, SCHEDULER, "status", job).stdout.strip() == "running"
    command(folder, "bkill", "touch cancelled")
    command(folder, "qdel", "touch cancelled")
    then = time.time() - 3 * 86400
    os.utime(folder / f".snakemake/cluster/{job}.submitted", (then, then))
    given_up = call(folder, SCHEDULER, "status", job)
    assert given_up.stdout.strip() == "failed"
    assert "are its nodes drained?" in given_up.stderr
    assert (folder / "cancelled").exists()


def test_a_job_that_is_gone_without_a_word_has_failed(kind: str, folder: Path) -> None:
    job = submitted(folder, "true")
    (folder / f".snakemake/cluster/{job}.ended").unlink()
    name, said = GONE[kind]
    command(folder, name, f"echo '{said}' >&2\nexit 1" if kind != "LSF" else f"echo '{said}'")
    # In a second instead of the time that a network file system gets.
    code = f"import runpy; s = runpy.run_path({str(SCHEDULER)!r}); s['status'].__globals__['LATE_SECONDS'] = 1; "
    gone = run(folder, "-c", code + f"print(s['status'](s['here'](), {job!r}))")
    assert gone.stdout.strip() == "failed"
    assert f"Job {job} is gone" in gone.stderr


def test_a_scheduler_that_does_not_answer_says_nothing_of_the_job(kind: str, folder: Path) -> None:
    job = submitted(folder, "true")
    (folder / f".snakemake/cluster/{job}.ended").unlink()
    command(folder, ALIVE[kind][0], "echo 'cannot reach the server' >&2\nexit 1")
    assert call(folder, SCHEDULER, "status", job).stdout.strip() == "running"


def test_a_refused_job_is_refused_in_the_words_of_the_scheduler(kind: str, folder: Path) -> None:
    command(folder, SUBMITS[kind][0], "echo 'no such queue' >&2\nexit 1")
    done = call(folder, SCHEDULER, "submit", jobscript(folder, "true"))
    assert done.returncode == 1
    assert "did not take the job: no such queue" in done.stderr


def test_a_machine_without_a_scheduler_is_told_so(folder: Path) -> None:
    done = call(folder, SCHEDULER, "submit", jobscript(folder, "true"))
    assert done.returncode == 1
    assert "Neither bsub nor qsub is on this machine" in done.stderr


def test_kubernetes_gets_what_the_slot_asks_for(folder: Path) -> None:
    command(folder, "kubectl", "cat >manifest\nprintf exactgraph-x7f2")
    done = call(folder, KUBECTL, "submit", jobscript(folder, "true"))
    assert done.stdout.strip() == "exactgraph-x7f2"
    pod = json.loads((folder / "manifest").read_text())["spec"]["template"]["spec"]
    assert pod["activeDeadlineSeconds"] == 3600
    assert pod["nodeSelector"] == {"nvidia.com/gpu.product": "h200", "node.kubernetes.io/instance-type": "gpu"}
    (container,) = pod["containers"]
    assert container["command"] == ["sh", str(folder / "snakejob.sh")]
    assert container["workingDir"] == str(folder)
    assert container["resources"] == {
        "limits": {"nvidia.com/gpu": 1, "memory": "2048Mi"},
        "requests": {"memory": "2048Mi", "cpu": 4},
    }


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        ({}, "running"),
        ({"conditions": [{"type": "Suspended", "status": "False"}]}, "running"),
        ({"conditions": [{"type": "Complete", "status": "True"}]}, "success"),
        ({"conditions": [{"type": "Failed", "status": "True", "message": "Pod was active too long"}]}, "failed"),
    ],
)
def test_kubernetes_says_how_a_job_ended(folder: Path, answer: dict[str, Any], status: str) -> None:
    command(folder, "kubectl", f"echo '{json.dumps({'status': answer})}'")
    said = call(folder, KUBECTL, "status", "exactgraph-x7f2")
    assert said.stdout.strip() == status
    assert ("Pod was active too long" in said.stderr) == (status == "failed")


@pytest.mark.parametrize(("error", "status"), [("Error from server (NotFound)", "failed"), ("connection refused", "running")])
def test_kubernetes_that_does_not_answer_is_no_failure(folder: Path, error: str, status: str) -> None:
    command(folder, "kubectl", f"echo '{error}' >&2\nexit 1")
    assert call(folder, KUBECTL, "status", "exactgraph-x7f2").stdout.strip() == status
