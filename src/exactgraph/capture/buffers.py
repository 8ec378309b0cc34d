"""Static buffers: tensors whose addresses graphs keep."""

from __future__ import annotations

import torch


def buffer(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """An uninitialised buffer that any later call may write, from inside inference mode or outside.

    A tensor made in inference mode cannot be written outside it, and calls come from either side.
    """
    with torch.inference_mode(False):
        return torch.empty(shape, dtype=dtype, device=device)
