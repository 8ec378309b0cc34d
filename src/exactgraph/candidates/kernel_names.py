"""The kernels of a captured step beside eager's, by name and in order.

Capture can change which kernel runs (a library asks whether it is captured, a layout allows another one), and equal bits on a
few inputs would not show it. Attention and whatever moves the cache differ by design and are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from transformers import DynamicCache

from exactgraph.canonical import digest
from exactgraph.capture.graph import Graph
from exactgraph.models.cache import cache_name

_LEFT_OUT = ("flash", "fmha", "attention", "catarray", "copy", "memcpy", "memset", "index")


def compare_kernels(model: Any, batch: int, graph: Graph, length: int) -> dict[str, Any] | None:
    """``eager`` and ``graph``: how many kernels the step to ``length`` tokens has; ``compared``: those compared, with the
    ``digest`` of eager's names; ``first_difference``: None, or index, eager's name and the graph's. ``failed`` where nothing
    could be recorded, which says nothing about the step. None without a GPU.
    """
    if model.device.type != "cuda":
        return None
    try:
        ours = _kernels(graph.replay, model.device)
        eager = _kernels(_eager_step(model, batch, length), model.device)
    except RuntimeError as error:
        return {"length": length, "failed": str(error)}
    if not ours or not eager:
        return {"length": length, "failed": "the profiler recorded no kernels"}
    kept, kept_by_graph = (
        [name for name in names if not any(word in name.lower() for word in _LEFT_OUT)] for names in (eager, ours)
    )
    pairs = zip(kept + [""] * len(kept_by_graph), kept_by_graph + [""] * len(kept), strict=True)
    differing = [[index, *pair] for index, pair in enumerate(pairs) if pair[0] != pair[1]]
    return {
        "length": length,
        "eager": len(eager),
        "graph": len(ours),
        "compared": len(kept),
        "digest": digest(kept),
        "first_difference": differing[0] if differing else None,
    }


def _compared(names: list[str]) -> list[str]:
    return [name for name in names if not any(word in name.lower() for word in _LEFT_OUT)]


def _eager_step(model: Any, batch: int, length: int) -> Callable[[], Any]:
    """A function that takes sequences of one token less to ``length`` in eager; it runs once."""
    tokens = torch.zeros((batch, length), dtype=torch.int64, device=model.device)
    cache = DynamicCache(config=model.config.get_text_config(decoder=True))
    arguments = {"use_cache": True, "logits_to_keep": 1, "return_dict": True, cache_name(model): cache}
    positions = torch.arange(length, device=model.device).expand(batch, length)

    def forward(first: int, last: int) -> Any:
        with torch.inference_mode(False), torch.no_grad():
            return model(input_ids=tokens[:, first:last], position_ids=positions[:, first:last], **arguments)

    forward(0, length - 2)
    forward(length - 2, length - 1)
    return lambda: forward(length - 1, length)


def _kernels(work: Callable[[], Any], device: torch.device) -> list[str]:
    """The names of the kernels, copies and fills that ``work`` runs on the GPU, in order of their start."""
    torch.cuda.synchronize(device)
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiler:
        work()
        torch.cuda.synchronize(device)
    events = [event for event in profiler.events() if event.device_type == DeviceType.CUDA]
    return [event.name for event in sorted(events, key=lambda event: event.time_range.start)]
