"""What candidates can touch of a step, the order that follows for building them, and which cannot matter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from exactgraph.models import parts

Reach = dict[str, Any]

#: A gain below this is not worth a build: timing on a shared host does not tell it from none.
LEAST_GAIN = 1.01


@dataclass(frozen=True)
class Step:
    """Eager's step, per step. ``shares``: of the host's time by kind and by part. ``kernels`` and ``gpu_ms`` likewise.

    ``step_ms`` and ``busy_ms`` are None where nothing was timed.
    """

    shares: Mapping[str, float]
    kernels: Mapping[str, float] | None
    gpu_ms: Mapping[str, float] | None
    step_ms: float | None
    busy_ms: float | None
    knows_parts: bool


def reach(step: Step, touches: tuple[str, ...]) -> Reach | None:
    """What a candidate that touches these kinds and parts can do at most; None where the model's parts are not known.

    ``at_most``: eager's step over what would remain if the host spent no time on what is touched. The GPU's own time stays:
    a candidate that replays eager's kernels saves none of it.
    """
    whole = parts.WHOLE in touches
    if not step.knows_parts and not whole and not set(touches) <= set(parts.KINDS):
        return None
    share = 1.0 if whole else sum(step.shares.get(name, 0.0) for name in touches)
    at_most = None
    if step.step_ms is not None and step.busy_ms is not None:
        at_most = step.step_ms / max(step.busy_ms, step.step_ms * (1 - share))
    return {
        "touches": list(touches),
        "share": share,
        "kernels": _sum(step.kernels, touches, whole),
        "gpu_ms": _sum(step.gpu_ms, touches, whole),
        "at_most": at_most,
    }


def _sum(figures: Mapping[str, float] | None, touches: tuple[str, ...], whole: bool) -> float | None:
    if figures is None:
        return None
    return sum(figures.get(name, 0.0) for name in (parts.KINDS if whole else touches))


def order(reaches: Mapping[str, Reach | None]) -> list[str]:
    """The most promising first; of equals the later rung, which captures the same in fewer graphs. Unknown ones come last."""
    names = list(reaches)

    def promise(name: str) -> tuple[float, int]:
        found = reaches[name]
        return (-1.0 if found is None else found["share"], names.index(name))

    return sorted(names, key=promise, reverse=True)


def skips(reaches: Mapping[str, Reach | None]) -> dict[str, str]:
    """Candidates that cannot matter, each with its reason."""
    return {name: _sentence(found) for name, found in reaches.items() if found is not None and not _matters(found)}


def _matters(found: Reach) -> bool:
    return found["at_most"] is None or found["at_most"] >= LEAST_GAIN


def _sentence(found: Reach) -> str:
    touched = "; ".join(found["touches"]) or "nothing"
    return (
        f"It touches {touched}, {found['share']:.1%} of the host's time in a step: "
        f"at most {found['at_most']:.3f} times eager, and less than {LEAST_GAIN} is not worth building."
    )
