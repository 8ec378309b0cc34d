"""Stages that end with the process that started them.

A killed Snakemake cannot stop its jobs, and a job left over would hold the GPU and write under the feet of the next run.
Whoever starts a stage says so by putting its own process id into :data:`PARENT`; without it a stage runs on its own, as
when a person starts one by hand.
"""

from __future__ import annotations

import ctypes
import os
import signal

PARENT = "EXACTGRAPH_PARENT"

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent ends, where the parent asked for that; call it first of all.

    SIGKILL, because nothing is left to tidy: outputs take their names only when they are whole.
    """
    # Taken out of the environment: processes that this one starts have another parent, and ask with child_environment().
    asked = os.environ.pop(PARENT, None)
    if asked is None:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    # The parent may have ended before the kernel was asked; then somebody else has adopted this process.
    if str(os.getppid()) != asked:
        os.kill(os.getpid(), signal.SIGKILL)


def child_environment() -> dict[str, str]:
    """The environment for a stage that this process starts and that must not outlive it."""
    return {**os.environ, PARENT: str(os.getpid())}
