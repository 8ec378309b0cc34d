"""A look at the machine behind a slot: what its probe's ``seen`` parameter holds.

Here, that is this machine's signature. Under Slurm a node of the slot is asked, where one is free at once. Where none can be
asked the answer is a new one each time, so that the probe runs and looks itself.
"""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Mapping
from typing import Any

from exactgraph.environment.signature import signature

#: What the question is called in the queue.
JOB_NAME = "exactgraph-look"
#: How long a node may take to be free.
PATIENCE_SECONDS = 5
_ANSWER_SECONDS = 60


def look(name: str, slot: Mapping[str, Any], workflow: Any) -> str:
    """What is seen of the slot ``name``; says so on stderr where no node could be asked."""
    if workflow.local_exec:
        return signature()
    executor = workflow.executor_plugin.name
    if executor != "slurm":
        return f"{executor}: {uuid.uuid4()}"
    answer = _ask(slot)
    if answer.returncode == 0:
        return answer.stdout.strip()
    why = answer.stderr.strip().splitlines()
    print(
        f"Slot {name}: no node could be asked ({why[-1] if why else 'no answer'}), so the probe runs and waits for one.",
        file=sys.stderr,
    )
    return f"{executor}: {uuid.uuid4()}"


def command(slot: Mapping[str, Any]) -> list[str]:
    """The ``srun`` that asks a node of ``slot`` for its signature."""
    asked = ["srun", "--quiet", f"--immediate={PATIENCE_SECONDS}", f"--job-name={JOB_NAME}"]
    asked += ["--nodes=1", "--ntasks=1", "--time=1", "--mem=1024"]
    asked.append(f"--gpus={slot['gpu']}:1" if "gpu" in slot else "--gpus=1")
    asked += [f"--{name}={slot[name]}" for name in ("partition", "account") if name in slot]
    return [*asked, sys.executable, "-m", "exactgraph.environment.signature"]


def _ask(slot: Mapping[str, Any]) -> subprocess.CompletedProcess[str]:
    # A Snakemake that was itself started by Slurm must not take the node it sits on for the slot's.
    variables = {name: value for name, value in os.environ.items() if name == "SLURM_CONF" or not name.startswith("SLURM_")}
    asked = command(slot)
    try:
        return subprocess.run(
            asked, env=variables, capture_output=True, text=True, timeout=PATIENCE_SECONDS + _ANSWER_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(asked, 1, "", str(error))
