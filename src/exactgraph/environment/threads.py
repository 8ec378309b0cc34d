"""The number of CPU threads, the same in every stage.

On a CPU the number of threads changes the order of additions, so it is in the environment key. Snakemake sets
``OMP_NUM_THREADS`` to a rule's ``threads`` in each job; were that obeyed, stages of one key would differ.
"""

from __future__ import annotations

import os
from pathlib import Path

_TOPOLOGY = Path("/sys/devices/system/cpu")


def usable(topology: Path = _TOPOLOGY) -> int:
    """Physical cores that this process may run on: hardware threads of one core count once."""
    allowed = os.sched_getaffinity(0)
    cores = set()
    for cpu in allowed:
        siblings = topology / f"cpu{cpu}" / "topology" / "thread_siblings_list"
        try:
            cores.add(siblings.read_text().strip())
        except OSError:  # no topology in this container: each is its own core
            cores.add(str(cpu))
    return max(1, len(cores))


def settle() -> int:
    """Make torch use :func:`usable` threads for CPU work, whatever ``OMP_NUM_THREADS`` says; returns the number."""
    import torch

    count = usable()
    torch.set_num_threads(count)
    return count
