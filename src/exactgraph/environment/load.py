"""How quiet a GPU was while something was timed on it: other work, a power cap, clocks that the driver held down.

None of these changes a bit, so exactness is judged all the same. They change speed, so a timing says whether it had them.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import pynvml

from exactgraph.environment import nvml

#: The driver averages its figure over up to a second; after this time nothing of our own work is in it.
PAUSE_SECONDS = 1.5
#: Percent. Below it lies what a desktop needs to draw its windows.
_QUIET = 5
#: Share of the time; a cap met for less of it is one that a GPU meets as it speeds up.
_BRIEF = 0.01
_REASONS = {
    pynvml.nvmlClocksEventReasonSwPowerCap: "a power cap",
    pynvml.nvmlClocksEventReasonHwSlowdown: "a hardware slowdown",
    pynvml.nvmlClocksEventReasonSwThermalSlowdown: "heat",
    pynvml.nvmlClocksEventReasonHwThermalSlowdown: "heat",
    pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown: "a power brake",
}
_POLICIES = {
    pynvml.NVML_PERF_POLICY_POWER: "a power cap",
    pynvml.NVML_PERF_POLICY_THERMAL: "heat",
    pynvml.NVML_PERF_POLICY_BOARD_LIMIT: "a board limit",
}
_log = logging.getLogger(__name__)


@dataclass
class Load:
    """What the driver showed; None where it does not tell, as for the slices of a GPU cut by MIG.

    ``before`` and ``after``: how busy (percent) the GPU was while this process left it alone. ``others``: the most (percent)
    that another process used of it in between. ``power_limit_w`` and ``power_default_w``: watts allowed, and as delivered.
    ``slowed``: what held the clocks down in between.
    """

    before: int | None = None
    after: int | None = None
    others: int | None = None
    power_limit_w: int | None = None
    power_default_w: int | None = None
    slowed: list[str] = field(default_factory=list)

    @property
    def noisy(self) -> list[str]:
        """Why figures taken meanwhile are noisy; empty where the GPU was quiet."""
        why = []
        for when, busy in (("before", self.before), ("after", self.after)):
            if busy is not None and busy > _QUIET:
                why.append(f"other work kept the GPU {busy}% busy {when} the timing")
        if self.others is not None and self.others > _QUIET:
            why.append(f"another process used up to {self.others}% of the GPU during the timing")
        if self.slowed:
            why.append(f"{' and '.join(self.slowed)} held the clocks down during the timing")
        return why

    @property
    def capped(self) -> str | None:
        """That the GPU may draw less than as delivered. Steady, so no noise, but the figures are those of a capped GPU."""
        if self.power_limit_w is None or self.power_default_w is None or self.power_limit_w >= self.power_default_w:
            return None
        return f"its power is capped at {self.power_limit_w} W of {self.power_default_w} W"

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "noisy": self.noisy}


@contextmanager
def watched(uuid: str | None, pause: float = PAUSE_SECONDS) -> Iterator[Load]:
    """Watch the GPU around a block that times something; the value is complete when the block has ended, and noise is logged.

    ``uuid`` is the GPU or MIG slice, None on a CPU, where nothing is watched. Enter and leave the block with the GPU idle on
    this process's part: for ``pause`` seconds before and after it whatever keeps the GPU busy is somebody else's.
    """
    load = Load()
    if uuid is None:
        yield load
        return
    with nvml.started():
        gpu = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        # Power and clocks are those of the whole GPU.
        board = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(gpu) if uuid.startswith("MIG-") else gpu
        load.power_limit_w = _watts(pynvml.nvmlDeviceGetPowerManagementLimit, board)
        load.power_default_w = _watts(pynvml.nvmlDeviceGetPowerManagementDefaultLimit, board)
        load.before = _busy(gpu, pause)
        began, held = time.time(), _held_down(board)
        yield load
        load.slowed = _slowed(board, held, time.time() - began)
        load.others = _others(gpu, began)
        load.after = _busy(gpu, pause)
    for sentence in (*load.noisy, load.capped):
        if sentence is not None:
            _log.warning("GPU %s: %s.", uuid, sentence)


def _ask(question: Callable[..., Any], *arguments: Any) -> Any:
    """The driver's answer, or None: not every GPU, slice or container has every figure, and none of them is worth a run."""
    try:
        return question(*arguments)
    except pynvml.NVMLError:
        return None


def _watts(question: Callable[..., Any], board: Any) -> int | None:
    milliwatts = _ask(question, board)
    return None if milliwatts is None else round(milliwatts / 1000)


def _busy(gpu: Any, pause: float) -> int | None:
    time.sleep(pause)
    rates = _ask(pynvml.nvmlDeviceGetUtilizationRates, gpu)
    return None if rates is None else int(rates.gpu)


def _held_down(board: Any) -> dict[str, int]:
    """Nanoseconds since the driver started for which each policy held the clocks down."""
    answers = {name: _ask(pynvml.nvmlDeviceGetViolationStatus, board, policy) for policy, name in _POLICIES.items()}
    return {name: answer.violationTime for name, answer in answers.items() if answer is not None}


def _slowed(board: Any, before: dict[str, int], seconds: float) -> list[str]:
    """What held the clocks down: at this moment, or for a part of the last ``seconds`` by the driver's own count."""
    reasons = _ask(pynvml.nvmlDeviceGetCurrentClocksEventReasons, board) or 0
    names = {name for bit, name in _REASONS.items() if reasons & bit}
    after = _held_down(board)
    names |= {name for name in before.keys() & after.keys() if after[name] - before[name] > _BRIEF * seconds * 1e9}
    return sorted(names)


def _others(gpu: Any, since: float) -> int | None:
    """The most that any other process used since then; None where the driver's process ids are not those of this container."""
    here = _ask(pynvml.nvmlDeviceGetComputeRunningProcesses, gpu)
    if here is None or os.getpid() not in {process.pid for process in here}:
        return None
    try:
        samples = pynvml.nvmlDeviceGetProcessUtilization(gpu, int(since * 1e6))
    except pynvml.NVMLError_NotFound:  # nobody used it
        return 0
    except pynvml.NVMLError:
        return None
    return max((int(sample.smUtil) for sample in samples if sample.pid != os.getpid()), default=0)
