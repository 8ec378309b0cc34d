"""What the GPU does in the steps of a recording: kernels, their time, and why it waits."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from exactgraph.profile.host import HostTime
from exactgraph.profile.record import GPU_WORK, Event

Interval = tuple[float, float]
_GRAPH_LAUNCHES = ("cudaGraphLaunch", "cuGraphLaunch")


@dataclass
class GpuTime:
    """All steps together, times in microseconds.

    ``kernels`` and ``times``: of kernels, copies and fills, by kind and by part. ``total`` counts them, ``launches`` the calls
    that started them, ``graph_launches`` those of a whole graph. ``busy``: any of them running. ``gap`` and ``host``: none
    running while the host was inside the model's forward pass, or elsewhere.
    """

    total: int = 0
    launches: int = 0
    graph_launches: int = 0
    busy: float = 0.0
    gap: float = 0.0
    host: float = 0.0
    kernels: Counter[str] = field(default_factory=Counter)
    times: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))


def gpu_time(events: Sequence[Event], host: HostTime) -> GpuTime | None:
    """Of the work that the host started in its steps; None where no GPU was recorded."""
    work = [event for event in events if event.category in GPU_WORK]
    if not work:
        return None
    time = GpuTime()
    running: list[Interval] = []
    started: set[int] = set()
    for event in work:
        if event.correlation not in host.calls:
            continue
        call, place = host.calls[event.correlation]
        if event.correlation not in started:
            started.add(event.correlation)
            time.launches += 1
            time.graph_launches += call in _GRAPH_LAUNCHES
        time.total += 1
        running.append((event.start, event.end))
        for name in {place.kind, place.part} - {""}:
            time.kernels[name] += 1
            time.times[name] += event.end - event.start
    busy = merged(running)
    time.busy = length(busy)
    idle = _between(busy)
    time.gap = length(_common(idle, merged(host.forwards)))
    time.host = length(idle) - time.gap
    return time


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """The same moments as intervals that neither touch nor overlap, in order."""
    found: list[Interval] = []
    for start, end in sorted(intervals):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


def length(intervals: Iterable[Interval]) -> float:
    return sum(end - start for start, end in intervals)


def _between(intervals: Sequence[Interval]) -> list[Interval]:
    return [(before[1], after[0]) for before, after in pairwise(intervals)]


def _common(left: Sequence[Interval], right: Sequence[Interval]) -> list[Interval]:
    """The moments in both; each is merged already."""
    found: list[Interval] = []
    i = j = 0
    while i < len(left) and j < len(right):
        start, end = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        if start < end:
            found.append((start, end))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return found
