"""Kubernetes for Snakemake's cluster-generic executor, through kubectl and the job of ``job.yaml``.

kubectl.py submit JOBSCRIPT     prints the job's name
kubectl.py status NAME          prints success, failed or running
kubectl.py cancel NAME...
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

TEMPLATE = Path(__file__).with_name("job.yaml")


def manifest(jobscript: Path) -> dict[str, Any]:
    """The job that runs ``jobscript``, with what its slot asks for."""
    found = re.search(r"^# properties = (.*)$", jobscript.read_text(), re.MULTILINE)
    if not found:
        sys.exit(f"{jobscript} does not say what it needs: it is no job script of Snakemake.")
    asked = json.loads(found[1])["resources"]
    job: dict[str, Any] = yaml.safe_load(TEMPLATE.read_text())
    pod = job["spec"]["template"]["spec"]
    pod["activeDeadlineSeconds"] = asked["runtime"] * 60
    # The labels that Kubernetes and NVIDIA's feature discovery give to nodes.
    if "gpu_model" in asked:
        pod["nodeSelector"]["nvidia.com/gpu.product"] = asked["gpu_model"]
    if "slurm_partition" in asked:
        pod["nodeSelector"]["node.kubernetes.io/instance-type"] = asked["slurm_partition"]
    container = pod["containers"][0]
    container["command"] = ["sh", str(jobscript.resolve())]
    container["workingDir"] = str(Path.cwd())
    container["resources"]["requests"] |= {"memory": f"{asked['mem_mb']}Mi", "cpu": asked["cpus_per_task"]}
    container["resources"]["limits"] |= {"memory": f"{asked['mem_mb']}Mi"}
    return job


def submit(jobscript: Path) -> str:
    """Hand the job over; returns its name."""
    command = ["kubectl", "create", "--filename=-", "--output=jsonpath={.metadata.name}"]
    done = subprocess.run(command, input=json.dumps(manifest(jobscript)), capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"Kubernetes did not take the job: {done.stderr.strip()}")
    return done.stdout.strip()


def status(name: str) -> str:
    """``success``, ``failed`` or ``running``; says on stderr why a job failed."""
    done = subprocess.run(["kubectl", "get", "job", name, "--output=json"], capture_output=True, text=True, check=False)
    if done.returncode:
        if "NotFound" not in done.stderr:
            return "running"  # nobody answers for the moment
        print(f"Job {name} is gone: somebody deleted it.", file=sys.stderr)
        return "failed"
    for condition in json.loads(done.stdout).get("status", {}).get("conditions", []):
        if condition["status"] != "True":
            continue
        if condition["type"] == "Complete":
            return "success"
        if condition["type"] == "Failed":
            print(f"Job {name} failed: {condition.get('message') or condition.get('reason')}", file=sys.stderr)
            return "failed"
    return "running"


def main(action: str, *rest: str) -> None:
    if action == "submit":
        print(submit(Path(rest[0])))
    elif action == "status":
        print(status(rest[0]))
    else:
        os.execvp("kubectl", ["kubectl", "delete", "job", "--wait=false", *rest])


if __name__ == "__main__":
    main(*sys.argv[1:])
