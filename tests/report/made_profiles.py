"""Invented profiles of eager's decode step, and of the steps of timed candidates."""

from __future__ import annotations

from typing import Any

Profile = dict[str, Any]
# Of each kind: share of the host's time, kernels and milliseconds of the GPU in a step.
_KINDS = {
    "projection": (0.31, 169.0, 1.5),
    "norm": (0.19, 294.0, 0.25),
    "activation": (0.08, 48.0, 0.1),
    "attention": (0.09, 48.0, 0.2),
    "rotary": (0.13, 245.0, 0.15),
    "cache": (0.05, 48.0, 0.0625),
    "head": (0.01, 1.0, 0.125),
    "other": (0.1, 171.0, 0.009),
    "sampling": (0.04, 4.0, 0.0035),
}
_REACH = {
    "step": (["whole step"], 1.0, 1028.0, 2.4, 8.917),
    "C023": (["mlp", "post-attention norm"], 0.5, 500.0, 1.2, 2.0),
    "C022": (["mlp"], 0.25, 120.0, 0.9, 1.333),
    "static": (["cache"], 0.005, 48.0, 0.0625, 1.005),
}
NEVER = (
    "It touches cache, 0.5% of the host's time in a step: at most 1.005 times eager, and less than 1.01 is not worth building."
)


def profile() -> Profile:
    names = ("touches", "share", "kernels", "gpu_ms", "at_most")
    return {
        "sha256": "0" * 64,
        "code": "e" * 16,
        "status": "profiled",
        "why": None,
        "attention": "flash",
        "prompt": "heldout/0",
        "steps": 8,
        "step_ms": 21.4,
        "gpu": {
            "busy_ms": 2.4,
            "launch_gap_ms": 17.9,
            "host_ms": 1.1,
            "kernels": 1028.0,
            "launches": 1028.0,
            "graph_launches": 0.0,
        },
        "kinds": {
            name: {"share": share, "kernels": kernels, "gpu_ms": spent} for name, (share, kernels, spent) in _KINDS.items()
        },
        "reach": {name: dict(zip(names, figures, strict=True)) for name, figures in _REACH.items()} | {"C025": None},
        "order": ["step", "C023", "C022", "static", "C025"],
        "skip": {"static": NEVER},
    }


def rehearsed() -> Profile:
    """On a CPU: shares of the host's time and nothing else."""
    found = profile()
    found |= {"step_ms": None, "gpu": None, "skip": {}}
    for kind in found["kinds"].values():
        kind |= {"kernels": None, "gpu_ms": None}
    for reach in filter(None, found["reach"].values()):
        reach |= {"kernels": None, "gpu_ms": None, "at_most": None}
    return found


def unprofiled(status: str, why: str) -> Profile:
    found = profile() | {"status": status, "why": why, "attention": None, "prompt": None, "steps": 0}
    return found | {"step_ms": None, "gpu": None, "kinds": {}, "reach": {}, "skip": {}}


def add(predicate: dict[str, Any]) -> None:
    """Give a receipt the profile, and its timed candidates one of a step with them."""
    predicate["profile"] = profile()
    predicate["evidence"] |= {"profile.json": "0" * 64, "skips.json": "0" * 64}
    for name, candidate in predicate["candidates"].items():
        launches, graphs = (5.0, 1.0) if name == "step" else (400.0, 24.0)
        if candidate["timing"]:
            candidate["measured"]["profile"] = {"busy_ms": 1.9, "kernels": 1028.0, "launches": launches}
            candidate["measured"]["profile"]["graph_launches"] = graphs
