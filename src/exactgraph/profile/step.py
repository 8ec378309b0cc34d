"""Eager's decode step on one model: measured, recorded, and put together as figures."""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import Any

import torch

from exactgraph.models.parts import KINDS
from exactgraph.profile.gpu import GpuTime, gpu_time
from exactgraph.profile.host import HostTime, host_time
from exactgraph.profile.labels import knows_parts, labelled
from exactgraph.profile.reach import Step
from exactgraph.profile.record import Recording, record_call
from exactgraph.protocol.questions import Question
from exactgraph.protocol.timing import ask
from exactgraph.protocol.trace import Generate
from exactgraph.refusal import Refused

#: Decode steps that figures are averages over, and those before them that are left out: the prompt's, and a warm-up.
STEPS, LEFT_OUT = 4, 2
#: Measured calls of each length; their median counts.
_CALLS = 3
_US_IN_MS = 1e3


def record_eager(model: Any, question: Question, device: torch.device) -> Recording:
    """Eager's steps with everything labelled. Raises ``Refused`` for a question with too short an answer."""
    with labelled(model):
        return record_steps(model.generate, question, device)


def record_steps(generate: Generate, question: Question, device: torch.device) -> Recording:
    """Steps of whatever ``generate`` runs. Raises ``Refused`` for a question with too short an answer."""
    if question.new_tokens < LEFT_OUT + 2:
        raise Refused("short-answers", f"An answer of {question.new_tokens} tokens is too short for a profile.")
    tokens = min(question.new_tokens, LEFT_OUT + STEPS + 1)
    # The first recording of a process brings the profiler up, and its call whatever is planned once for each length.
    record_call(generate, question, tokens, device)
    return record_call(generate, question, tokens, device)


def step_ms(generate: Generate, question: Question, device: torch.device) -> tuple[list[list[int]], float]:
    """The generated tokens of each call, and the milliseconds of a decode step without the profiler.

    A step is the difference of calls that generate many tokens and one.
    """
    tokens: list[list[int]] = []
    many: list[float] = []
    one: list[float] = []
    for _ in range(_CALLS):
        for count, seconds in ((question.new_tokens, many), (1, one)):
            answer, spent = ask(generate, replace(question, new_tokens=count), device)
            tokens.append(answer)
            seconds.append(spent)
    return tokens, 1e3 * (statistics.median(many) - statistics.median(one)) / (question.new_tokens - 1)


def figures(model: Any, recording: Recording, measured_ms: float | None) -> tuple[dict[str, Any], Step]:
    """``steps``, ``step_ms``, ``gpu`` and ``kinds`` of ``profile.json``, and what :func:`reach` needs.

    The profiler slows the host down and leaves kernels as they are: the GPU's busy time is taken as recorded, the rest of the
    measured step is split between launch gaps and host in the recorded proportion. Shares of the host's time are as recorded.
    """
    host = host_time(recording.events, LEFT_OUT)
    gpu = gpu_time(recording.events, host)
    total = host.end - host.begin
    shares = {name: spent / total for name, spent in (host.kinds | host.parts).items()}
    kernels = gpu_ms = on_gpu = None
    if gpu is not None:
        kernels = {name: count / host.steps for name, count in gpu.kernels.items()}
        gpu_ms = {name: spent / host.steps / _US_IN_MS for name, spent in gpu.times.items()}
        on_gpu = None if measured_ms is None else _gpu(gpu, host, measured_ms)
    step = Step(
        shares=shares,
        kernels=kernels,
        gpu_ms=gpu_ms,
        step_ms=measured_ms,
        busy_ms=None if on_gpu is None else on_gpu["busy_ms"],
        knows_parts=knows_parts(model),
    )
    return {
        "steps": host.steps,
        "step_ms": measured_ms,
        "gpu": on_gpu,
        "kinds": {kind: _kind(kind, step) for kind in KINDS},
    }, step


def work(recording: Recording) -> dict[str, float]:
    """A recorded step's ``kernels``, ``launches``, ``graph_launches`` and ``busy_ms``. Raises ``ValueError`` without a GPU."""
    host = host_time(recording.events, LEFT_OUT)
    gpu = gpu_time(recording.events, host)
    if gpu is None:
        raise ValueError("the profiler recorded no work on a GPU")
    return _work(gpu, host)


def _gpu(gpu: GpuTime, host: HostTime, measured_ms: float) -> dict[str, float]:
    work = _work(gpu, host)
    # Recorded kernels can fill more than the measured step only where the GPU never waits.
    idle_ms = max(0.0, measured_ms - work["busy_ms"])
    idle = gpu.gap + gpu.host
    gap_ms = idle_ms * gpu.gap / idle if idle else 0.0
    return {**work, "busy_ms": measured_ms - idle_ms, "launch_gap_ms": gap_ms, "host_ms": idle_ms - gap_ms}


def _work(gpu: GpuTime, host: HostTime) -> dict[str, float]:
    return {
        "busy_ms": gpu.busy / host.steps / _US_IN_MS,
        "kernels": gpu.total / host.steps,
        "launches": gpu.launches / host.steps,
        "graph_launches": gpu.graph_launches / host.steps,
    }


def _kind(kind: str, step: Step) -> dict[str, float | None]:
    return {
        "share": step.shares.get(kind, 0.0),
        "kernels": None if step.kernels is None else step.kernels.get(kind, 0.0),
        "gpu_ms": None if step.gpu_ms is None else step.gpu_ms.get(kind, 0.0),
    }
