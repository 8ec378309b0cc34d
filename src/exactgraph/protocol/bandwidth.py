"""The floor of a decode step: the weights have to be read once, at the bandwidth of the device's memory."""

from __future__ import annotations

import statistics
from typing import Any

import torch

from exactgraph.models.head import output_head, token_embedding

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
    """Bytes of weights that one decode step must read: not an encoder's, nor the embedding table, of which a step reads a row.

    A tied head reads that table whole, so then it counts.
    """
    unread = _encoder(model)
    embedding, head = token_embedding(model), output_head(model)
    if embedding is not None and (head is None or head.weight is not embedding.weight):
        unread.add(embedding.weight)
    return sum(weight.numel() * weight.element_size() for weight in model.parameters() if weight not in unread)


def _encoder(model: Any) -> set[Any]:
    """Weights of the encoder alone; all of them are outside the decoder where it shares none."""
    encoder = model.get_encoder() if model.config.is_encoder_decoder else None
    if not isinstance(encoder, torch.nn.Module):
        return set()
    inside = {*encoder.modules()}
    others = {weight for module in model.modules() if module not in inside for weight in module.parameters(recurse=False)}
    return {*encoder.parameters()} - others
