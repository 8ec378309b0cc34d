"""Where a GPU job runs: the slots that serve its path, and what a scheduler is asked for in the name of one.

A path below the model names a device and an environment, not a slot, and slots on identical machines share one path. Any of
them may run its jobs: the first in the configuration does, and a job that failed there is tried on the next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from exactgraph.workflow.serving import serving

Slot = Mapping[str, Any]
Resource = Callable[[Any, int], str | int | None]

# What Snakemake's executors read, from the fields of a slot; None leaves a resource out.
_RESOURCES: dict[str, Callable[[Slot], str | int | None]] = {
    "slurm_partition": lambda slot: slot.get("partition"),
    "slurm_account": lambda slot: slot.get("account"),
    "gpu_model": lambda slot: slot.get("gpu"),
    "runtime": lambda slot: slot["walltime"],  # minutes
    "mem_mb": lambda slot: slot["memory"] * 1024,
}


def resources(slots: Mapping[str, Slot]) -> dict[str, Resource]:
    """The resources of a rule that uses a GPU, from the slot of each job. They are no reason to run a job again."""

    def resource(read: Callable[[Slot], str | int | None]) -> Resource:
        def value(wildcards: Any, attempt: int) -> str | int | None:
            # Where no slot serves, any will do: the job itself says that it woke up in the wrong place.
            names = _of_job(slots, wildcards) or list(slots)
            return read(slots[names[(attempt - 1) % len(names)]])

        return value

    return {name: resource(read) for name, read in _RESOURCES.items()}


def _of_job(slots: Mapping[str, Slot], wildcards: Any) -> list[str]:
    """The slots that may run a job: the one in ``wildcards``, or those last seen with the device and environment in them."""
    named = wildcards.get("slot")
    if named:
        return [named] if named in slots else []
    return serving(slots, wildcards.device, wildcards.env)
