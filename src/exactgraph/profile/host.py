"""What the host's thread does in the steps of a recording, moment by moment, and under which labels it starts GPU work."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from exactgraph.models import parts
from exactgraph.profile.labels import FORWARD, PREFIX, STEP
from exactgraph.profile.record import LAUNCHES, Event

_ATTENTION_OPERATOR = "aten::scaled_dot_product_attention"


@dataclass(frozen=True)
class Place:
    """Where in a step something happens: its kind and, in a known layout, its part; ``forward``: in the model's pass."""

    kind: str
    part: str
    forward: bool


OUTSIDE = Place(parts.SAMPLING, "", forward=False)


@dataclass
class HostTime:
    """All steps together. Times in microseconds.

    ``begin``, ``end``: of the first and the last step. ``kinds`` sums to the time between them; ``parts`` are whole, with all
    that happens inside. ``calls``: each call of the CUDA library by its correlation, as its name and where it was made.
    ``forwards``: when the host was in the model's forward pass.
    """

    steps: int
    begin: float
    end: float
    kinds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    parts: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    calls: dict[int, tuple[str, Place]] = field(default_factory=dict)
    forwards: list[tuple[float, float]] = field(default_factory=list)


def host_time(events: Sequence[Event], left_out: int) -> HostTime:
    """The host's time from mark to mark, without the first ``left_out`` steps: the first is the prompt's, and caches warm up.

    Raises ``ValueError`` where fewer steps were recorded.
    """
    marks = sorted((event for event in events if event.name == STEP), key=lambda event: event.start)[left_out:]
    if len(marks) < 2:
        raise ValueError(f"the recording has no whole step after the first {left_out}")
    begin, end, thread = marks[0].start, marks[-1].start, marks[0].thread
    time = HostTime(len(marks) - 1, begin, end)
    # Longer first where two begin together: the outer one.
    ordered = sorted(
        (event for event in events if event.thread == thread and event.category in LAUNCHES | {"cpu_op", "user_annotation"}),
        key=lambda event: (event.start, -event.end),
    )
    _walk(ordered, time)
    return time


def _walk(ordered: Sequence[Event], time: HostTime) -> None:
    """Go through nested events and give each moment to the innermost one around it."""
    around: list[tuple[float, Place]] = [(float("inf"), OUTSIDE)]
    now = time.begin
    for event in ordered:
        now = _until(event.start, now, around, time)
        place = _place(event, around[-1][1])
        if time.begin <= event.start < time.end:
            _count(event, place, around[-1][1], time)
        around.append((event.end, place))
    _until(time.end, now, around, time)


def _until(moment: float, now: float, around: list[tuple[float, Place]], time: HostTime) -> float:
    """Spend the time from ``now`` to ``moment``, leaving what ends meanwhile."""
    while around[-1][0] <= moment:
        ends, place = around.pop()
        now = _spend(now, ends, place, time)
    return _spend(now, moment, around[-1][1], time)


def _spend(now: float, until: float, place: Place, time: HostTime) -> float:
    until = min(until, time.end)
    if until <= now:
        return now
    time.kinds[place.kind] += until - now
    if place.part:
        time.parts[place.part] += until - now
    return until


def _place(event: Event, outer: Place) -> Place:
    if event.name == FORWARD:
        return Place(parts.OTHER, "", forward=True)
    if event.category == "user_annotation" and event.name.startswith(f"{PREFIX}|") and event.name != STEP:
        _, kind, part = event.name.split("|")
        # A part is whole: a projection inside the MLP is the MLP's.
        return Place(kind, outer.part or part, outer.forward)
    if event.name == _ATTENTION_OPERATOR:
        return Place(parts.ATTENTION, outer.part, outer.forward)
    return outer


def _count(event: Event, place: Place, outer: Place, time: HostTime) -> None:
    if event.name == FORWARD and not outer.forward:
        time.forwards.append((event.start, event.end))
    if event.category in LAUNCHES and event.correlation is not None:
        time.calls[event.correlation] = (event.name, place)
