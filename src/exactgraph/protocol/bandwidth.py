"""The floor of a decode step: the weights have to be read once, at the bandwidth of the device's memory."""

from __future__ import annotations

import statistics
from typing import Any

import torch

COPY_BYTES = 1 << 30
COPIES = 9


def copy_bandwidth(device: torch.device) -> float:
    """Bytes a second of a device-to-device copy of 1 GiB, bytes read plus bytes written, median of several."""
    source = torch.randint(0, 255, (COPY_BYTES,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    target.copy_(source)
    milliseconds: list[float] = []
    for _ in range(COPIES):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        target.copy_(source)
        end.record()
        end.synchronize()
        milliseconds.append(start.elapsed_time(end))
    return 2 * COPY_BYTES / (statistics.median(milliseconds) / 1e3)


def step_bytes(model: Any) -> int:
    """Bytes of weights that one decode step must read: all but the embedding table, of which a step reads one row.

    A tied head reads that table whole, so then it counts.
    """
    embedding = model.get_input_embeddings().weight
    head = model.get_output_embeddings().weight
    total: int = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    return total if head is embedding else total - embedding.numel() * embedding.element_size()
