"""Windows one after the other or many at a time: which is faster on a device, and whether the answers are the same."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from exactgraph.guidance.windows import Windows
from exactgraph.runtime.rows import Inputs


def compare_modes(
    windows: Windows, inputs: Sequence[Inputs], batch: int, pad: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, Any]:
    """``{"sequential_s", "parallel_s", "faster", "equal", "of"}``: seconds for all windows, each way once after a warm-up.

    ``faster`` is ``sequential`` or ``parallel``; ``equal`` of ``of`` windows have the same tokens both ways. Windows must not
    depend on each other, and the caller has the device alone.
    """
    device = windows.model.device
    ways: dict[str, Callable[[], list[torch.Tensor]]] = {
        "sequential": lambda: windows.sequential(inputs),
        "parallel": lambda: windows.parallel(inputs, batch, pad),
    }
    seconds, answers = {}, {}
    for name, run in ways.items():
        run()
        _wait(device)
        started = clock()
        answers[name] = run()
        _wait(device)
        seconds[name] = clock() - started
    equal = sum(torch.equal(one, other) for one, other in zip(answers["sequential"], answers["parallel"], strict=True))
    return {
        "sequential_s": seconds["sequential"],
        "parallel_s": seconds["parallel"],
        "faster": min(seconds, key=lambda name: seconds[name]),
        "equal": equal,
        "of": len(inputs),
    }


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
