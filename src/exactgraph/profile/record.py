"""One profiled call of ``generate``, as the events of PyTorch's trace format."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import orjson
import torch
from torch.profiler import ProfilerActivity, profile
from transformers.generation.logits_process import LogitsProcessorList

from exactgraph.profile.labels import StepMark
from exactgraph.protocol.questions import Question
from exactgraph.protocol.timing import synchronise
from exactgraph.protocol.trace import Generate, greedy

#: Categories of work on the GPU, and of the calls that start it.
GPU_WORK = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
LAUNCHES = frozenset({"cuda_runtime", "cuda_driver"})
_KEPT = GPU_WORK | LAUNCHES | {"cpu_op", "user_annotation"}


@dataclass(frozen=True)
class Event:
    """Something with a beginning and an end, in microseconds. ``thread`` is the host's, or the stream on a GPU.

    ``correlation`` is shared by work on the GPU and the call that started it; None where there is neither.
    """

    category: str
    name: str
    thread: Any
    start: float
    end: float
    correlation: int | None


class Recording:
    """``tokens``: the generated token IDs. ``events``: everything on host and GPU, unordered, read when first asked for."""

    def __init__(self, tokens: list[int], profiler: Any) -> None:
        self.tokens = tokens
        self._profiler = profiler

    @cached_property
    def events(self) -> list[Event]:
        """Through the exported trace: its format is the public one, and it is read faster than the profiler's own list."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            self._profiler.export_chrome_trace(str(path))
            raw = orjson.loads(path.read_bytes())["traceEvents"]
        return [_event(entry) for entry in raw if entry.get("ph") == "X" and entry.get("cat") in _KEPT]


def _event(entry: dict[str, Any]) -> Event:
    start = float(entry["ts"])
    end = start + float(entry.get("dur", 0))
    return Event(entry["cat"], entry["name"], entry["tid"], start, end, entry.get("args", {}).get("correlation"))


def record_call(generate: Generate, question: Question, new_tokens: int, device: torch.device) -> Recording:
    """Generate ``new_tokens`` after the prompt of ``question`` under the profiler, greedily, with each step marked."""
    arguments = greedy(replace(question, new_tokens=new_tokens), device)
    arguments["logits_processor"] = LogitsProcessorList([StepMark()])
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device.type == "cuda" else [])
    synchronise(device)
    with profile(activities=activities, acc_events=True) as profiler:
        output = generate(**arguments)
        synchronise(device)
    return Recording(question.answer(output), profiler)
