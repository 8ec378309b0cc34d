"""LSF, SGE or PBS, whichever this machine has, for Snakemake's cluster-generic executor.

    scheduler.py submit JOBSCRIPT     prints the job's id
    scheduler.py status ID            prints success, failed or running
    scheduler.py cancel ID...

How a job ended is known from a file that it leaves, since schedulers forget. A job that is gone without one was cancelled, ran
out of time or lost its node. One that waits longer than ``PATIENCE_DAYS`` is given up: its nodes may all be drained.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PATIENCE_DAYS = 2
#: How late a network file system may show the file of a job that the scheduler has already forgotten.
LATE_SECONDS = 20
FOLDER = Path(".snakemake/cluster")
Resources = Mapping[str, Any]


@dataclass(frozen=True)
class Scheduler:
    """One kind of scheduler: its commands, and what it says of a job that it no longer runs or never will."""

    submit: Callable[[Resources], list[str]]
    number: str  # finds the job's id in what submit prints
    variable: str  # holds the id within the job
    status: list[str]
    over: str
    cancel: list[str]


def _lsf(asked: Resources) -> list[str]:
    gpu = "num=1" + (f":gmodel={asked['gpu_model']}" if "gpu_model" in asked else "")
    cores = ["-n", str(asked["cpus_per_task"]), "-R", f"span[hosts=1] rusage[mem={asked['mem_mb']}MB]"]
    return ["bsub", *_named(asked, "-q", "-P"), *cores, "-W", str(asked["runtime"]), "-gpu", gpu, "-o", "/dev/null"]


def _sge(asked: Resources) -> list[str]:
    wanted = f"gpu=1,h_rt={asked['runtime'] * 60},mem_free={asked['mem_mb']}M"
    wanted += f",gpu_type={asked['gpu_model']}" if "gpu_model" in asked else ""
    cores = ["-pe", "smp", str(asked["cpus_per_task"])]
    return ["qsub", *_named(asked, "-q", "-P"), "-V", "-cwd", *cores, "-l", wanted, "-j", "y", "-o", "/dev/null"]


def _pbs(asked: Resources) -> list[str]:
    chunk = f"select=1:ncpus={asked['cpus_per_task']}:ngpus=1:mem={asked['mem_mb']}mb"
    chunk += f":gpu_model={asked['gpu_model']}" if "gpu_model" in asked else ""
    limit = f"walltime={asked['runtime'] * 60}"
    return ["qsub", *_named(asked, "-q", "-A"), "-V", "-l", chunk, "-l", limit, "-j", "oe", "-o", "/dev/null"]


def _named(asked: Resources, queue: str, account: str) -> list[str]:
    named = {queue: asked.get("slurm_partition"), account: asked.get("slurm_account")}
    return [word for option, value in named.items() if value for word in (option, str(value))]


_GONE_LSF = r"^(DONE|EXIT)|is not found"
_GONE_SGE = r"do not exist|error reason"
_GONE_PBS = r"job_state = [CFX]|Unknown Job|has finished"
LSF = Scheduler(_lsf, r"<(\d+)>", "LSB_JOBID", ["bjobs", "-noheader", "-o", "stat"], _GONE_LSF, ["bkill"])
SGE = Scheduler(_sge, r"job (\d+)", "JOB_ID", ["qstat", "-j"], _GONE_SGE, ["qdel"])
PBS = Scheduler(_pbs, r"^(\S+)", "PBS_JOBID", ["qstat", "-f"], _GONE_PBS, ["qdel"])


def here() -> Scheduler:
    """The scheduler of this machine."""
    if shutil.which("bsub"):
        return LSF
    if shutil.which("qsub"):
        return SGE if shutil.which("qconf") else PBS
    sys.exit("Neither bsub nor qsub is on this machine: run Snakemake where jobs are submitted to LSF, SGE or PBS.")


def submit(scheduler: Scheduler, jobscript: Path) -> str:
    """Hand the job to the scheduler; returns its id."""
    found = re.search(r"^# properties = (.*)$", jobscript.read_text(), re.MULTILINE)
    if not found:
        sys.exit(f"{jobscript} does not say what it needs: it is no job script of Snakemake.")
    FOLDER.mkdir(parents=True, exist_ok=True)
    stem = f"{shlex.quote(str(FOLDER.resolve()))}/${scheduler.variable}"
    script = (
        f"#!/bin/sh\nexec >{stem}.log 2>&1\ntouch {stem}.started\nsh {shlex.quote(str(jobscript))}\n"
        f"echo $? >{stem}.ending\nmv {stem}.ending {stem}.ended\n"
    )
    command = scheduler.submit(json.loads(found[1])["resources"])
    done = subprocess.run(command, input=script, capture_output=True, text=True, check=False)
    number = re.search(scheduler.number, done.stdout)
    if done.returncode or not number:
        sys.exit(f"{shlex.join(command)} did not take the job: {done.stderr.strip() or done.stdout.strip()}")
    (FOLDER / f"{number[1]}.submitted").touch()
    return number[1]


def status(scheduler: Scheduler, job: str) -> str:
    """``success``, ``failed`` or ``running``."""
    if ended := _ended(job):
        return ended
    asked = subprocess.run([*scheduler.status, job], capture_output=True, text=True, check=False)
    said = asked.stdout + asked.stderr
    if re.search(scheduler.over, said, re.MULTILINE):
        until = time.monotonic() + LATE_SECONDS
        while time.monotonic() < until:
            time.sleep(1)
            if ended := _ended(job):
                return ended
        print(f"Job {job} is gone: it was cancelled, ran out of time or memory, or lost its node.", file=sys.stderr)
        return "failed"
    waited = time.time() - (FOLDER / f"{job}.submitted").stat().st_mtime
    if waited > PATIENCE_DAYS * 86400 and not (FOLDER / f"{job}.started").exists():
        subprocess.run([*scheduler.cancel, job], check=False)
        print(f"Job {job} waited for {PATIENCE_DAYS} days and was given up: are its nodes drained?", file=sys.stderr)
        return "failed"
    return "running"


def _ended(job: str) -> str | None:
    try:
        code = (FOLDER / f"{job}.ended").read_text().strip()
    except FileNotFoundError:
        return None
    return "success" if code == "0" else "failed"


def main(action: str, *rest: str) -> None:
    scheduler = here()
    if action == "submit":
        print(submit(scheduler, Path(rest[0])))
    elif action == "status":
        print(status(scheduler, rest[0]))
    else:
        os.execvp(scheduler.cancel[0], [*scheduler.cancel, *rest])


if __name__ == "__main__":
    main(*sys.argv[1:])
