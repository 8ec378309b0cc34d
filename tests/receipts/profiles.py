"""Profiles as their stage leaves them; where one was taken, without its process and the attention backend."""

from __future__ import annotations

from typing import Any

STEP_MS, BUSY_MS = 100.0, 20.0
KERNELS = {"projection": 169.0, "norm": 49.0, "activation": 48.0, "other": 130.0, "sampling": 4.0}
SHARES = {"projection": 0.4, "norm": 0.1, "activation": 0.125, "other": 0.25, "sampling": 0.125}


def profiled(rehearsal: bool) -> dict[str, Any]:
    """Eager's step; without figures of time or of a GPU in a rehearsal."""
    return {
        **unprofiled(),
        "status": "profiled",
        "why": None,
        "prompt": "heldout/0",
        "steps": 8,
        "step_ms": None if rehearsal else STEP_MS,
        "gpu": None
        if rehearsal
        else {
            "busy_ms": BUSY_MS,
            "launch_gap_ms": 70.0,
            "host_ms": 10.0,
            "kernels": 400.0,
            "launches": 400.0,
            "graph_launches": 0.0,
        },
        "kinds": {
            kind: {
                "share": share,
                "kernels": None if rehearsal else KERNELS[kind],
                "gpu_ms": None if rehearsal else BUSY_MS * KERNELS[kind] / 400,
            }
            for kind, share in SHARES.items()
        },
        "reach": {"C022": reach(["mlp"], 0.25, rehearsal), "step": reach(["whole step"], 1.0, rehearsal)},
    }


def reach(touches: list[str], share: float, rehearsal: bool) -> dict[str, Any]:
    figures = {"kernels": 400 * share, "gpu_ms": BUSY_MS * share, "at_most": STEP_MS / max(BUSY_MS, STEP_MS * (1 - share))}
    return {"touches": touches, "share": share, **(dict.fromkeys(figures) if rehearsal else figures)}


def unprofiled() -> dict[str, Any]:
    """There was no baseline to profile."""
    return {
        "stage": "profile",
        "code": "e" * 16,
        "status": "skipped",
        "why": "There is no baseline to profile.",
        "attention": None,
        "prompt": None,
        "steps": 0,
        "step_ms": None,
        "gpu": None,
        "kinds": {},
        "reach": {},
        "order": ["step", "C022"],
        "skip": {},
        "process": None,
    }
