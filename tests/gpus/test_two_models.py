"""One model on each of two GPUs: driven from two threads at once, and torn down beside each other."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from runtime_models import make_llama, prompt
from runtime_outputs import ask, assert_same

from exactgraph.candidates.base import Context
from exactgraph.candidates.registry import candidate
from exactgraph.capture import Capturer, capturer_for
from exactgraph.runtime.attention import preferred
from exactgraph.runtime.session import Session

pytestmark = pytest.mark.gpu(2)

CALLS = 6
SECONDS = 120


def opened(llama: Any, name: str, pin: str, capturer: Capturer) -> Session:
    context = Context(capturer, 256, 64, 128)
    chosen = candidate(name)
    return Session(llama, chosen, chosen.plan(llama, context), context, pin)


@pytest.mark.parametrize("name", ["step", "C022", "C025"])
@pytest.mark.parametrize("pins", [("flash", "flash"), ("flash", "math")], ids="+".join)
def test_one_model_on_each_gpu_from_two_threads(gpus: list[torch.device], name: str, pins: tuple[str, str]) -> None:
    """Planning, capturing and replaying at the same time. Each call has other lengths, so captures go on all the while."""
    prompts = [[prompt(gpu, 8 + 5 * call, seed=10 * gpu.index + call) for call in range(CALLS)] for gpu in gpus]
    models, expected = [], []
    for gpu, pin, asked in zip(gpus, pins, prompts, strict=True):
        llama = make_llama(gpu)
        with torch.cuda.device(gpu), preferred(pin):
            expected.append([ask(llama.generate, ids) for ids in asked])
        models.append(llama)
    together = threading.Barrier(2)

    def drive(place: int) -> list[bool]:
        torch.cuda.set_device(gpus[place])
        together.wait(SECONDS)
        captured = []
        with opened(models[place], name, pins[place], capturer_for(gpus[place])) as session:
            for call, ids in enumerate(prompts[place]):
                together.wait(SECONDS)
                got = ask(models[place].generate, ids)
                assert_same(got, expected[place][call])
                assert session.last is not None
                assert session.last.refusal is None, session.last.refusal
                captured.append(session.last.steps is None or session.last.steps.eager == 0)
        return captured

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(drive, (0, 1))) == [[True] * CALLS] * 2


@pytest.mark.parametrize("closed", [0, 1])
def test_the_end_of_one_leaves_the_other_alone(gpus: list[torch.device], closed: int) -> None:
    sessions, models, capturers = [], [], []
    for gpu in gpus:
        with torch.cuda.device(gpu):
            models.append(make_llama(gpu))
            capturers.append(capturer_for(gpu))
            sessions.append(opened(models[-1], "step", "flash", capturers[-1]))
            ask(models[-1].generate, prompt(gpu, 12))
    sessions[closed].close()
    sessions[closed] = models[closed] = capturers[closed] = None
    gc.collect()
    with torch.cuda.device(gpus[closed]):
        torch.cuda.empty_cache()
    left = 1 - closed
    with torch.cuda.device(gpus[left]):
        graphs = capturers[left].graphs
        for seed in (1, 2):
            ids = prompt(gpus[left], 12, seed)
            assert_same(ask(models[left].generate, ids), ask(sessions[left].eager, ids))
        assert capturers[left].graphs == graphs, "the graphs from before are the ones that were replayed"
        sessions[left].close()
