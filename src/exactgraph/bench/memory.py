"""GPU memory that a piece of work takes, and giving it back."""

from __future__ import annotations

import gc

import torch

MIB = 1 << 20


class Peak:
    """The highest allocation since this was made, above what was allocated then."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._before = 0
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            torch.cuda.reset_peak_memory_stats(device)
            self._before = torch.cuda.memory_allocated(device)

    def mib(self) -> float | None:
        """MiB; None on a CPU."""
        if self._device.type != "cuda":
            return None
        return (torch.cuda.max_memory_allocated(self._device) - self._before) / MIB


def release(device: torch.device) -> None:
    """Drop what nobody refers to: graphs and buffers of a candidate die with their last reference, some in cycles."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
