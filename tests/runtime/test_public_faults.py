"""What went wrong with captured decoding elsewhere, by the number that each fault has in the project's list.

Everywhere the token IDs and all logits are those of eager, or the call or the plan is refused by name.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from decoder_models import make
from runtime_models import make_llama, prompt
from runtime_outputs import ask, assert_same, refusal_of, steps_of
from sessions import open_session
from torch import nn

from exactgraph.candidates.base import Context
from exactgraph.candidates.registry import candidate
from exactgraph.capture import Capturer, capturer_for
from exactgraph.refusal import Refused
from exactgraph.runtime.session import Session

Install = Callable[..., Session]
SERVED = ["step", "C022"]


def opened(model: Any, attention: str, capturer: Capturer, budget: int = 64, confirmed: int = 128) -> Session:
    context = Context(capturer, budget, 64, confirmed)
    step = candidate("step")
    return open_session(model, step, context, attention)


def test_fault_2_an_answer_does_not_depend_on_the_capacity(llama: Any, attention: str) -> None:
    ids = prompt(llama.device, 20)
    for capacity in (1 << 10, 1 << 12, 1 << 14):
        with opened(llama, attention, capturer_for(llama.device), confirmed=capacity) as session:
            expected = ask(session.eager, ids, 40)
            assert_same(ask(llama.generate, ids, 40), expected)
            assert steps_of(session) == (39, 0)


@pytest.mark.parametrize("name", SERVED)
@pytest.mark.parametrize("case", ["left-padded", "masked inside", "batch of unequal lengths"])
def test_fault_7_padding_means_what_it_means_in_eager(device: torch.device, name: str, case: str) -> None:
    llama = make_llama(device)
    context = Context(capturer_for(device), 64, 64, 128)
    chosen = candidate(name)
    ids = torch.cat([prompt(device, 12, seed) for seed in ((1, 2) if case.startswith("batch") else (1,))])
    mask = torch.ones_like(ids)
    if case == "masked inside":
        mask[0, 4:7] = 0
    else:
        ids[0, :5], mask[0, :5] = 1, 0
    # Flash takes no mask.
    attention = "math" if device.type == "cuda" else "default"
    with open_session(llama, chosen, context, attention) as session:
        arguments = {"attention_mask": mask}
        got, expected = ask(llama.generate, ids, 20, **arguments), ask(session.eager, ids, 20, **arguments)
        assert_same(got, expected)
        if name == "step":
            assert refusal_of(session) in ("padding", "batch")
        # And the mask mattered: without it the answer is another one.
        unmasked = ask(session.eager, ids, 20, attention_mask=torch.ones_like(ids))
        assert not torch.equal(got.logits[-1], unmasked.logits[-1])


def test_fault_10_dynamic_rope_past_its_original_length(device: torch.device, attention: str) -> None:
    settings = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    llama = make_llama(device, max_position_embeddings=32, rope_parameters=settings)
    with pytest.raises(Refused, match="dynamic RoPE past 32 tokens") as caught:
        opened(llama, attention, capturer_for(device))
    assert caught.value.refusal.reason == "dynamic-rope"
    context = Context(capturer_for(device), 64, 24, 32)
    step = candidate("step")
    ids = prompt(device, 10)
    with open_session(llama, step, context, attention) as session:
        got = ask(llama.generate, ids, 60)
        assert steps_of(session) == (22, 37)
        assert_same(got, ask(session.eager, ids, 60))


class Runner:
    """Holds a session in a cycle, as programs do."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.itself = self


def test_fault_13_an_old_runner_is_collected_while_another_captures(device: torch.device, attention: str) -> None:
    ids = prompt(device, 12)
    old_model = make_llama(device)
    runner = Runner(opened(old_model, attention, capturer_for(device)))
    ask(old_model.generate, ids)
    gone = weakref.ref(runner)
    llama = make_llama(device)
    expected = ask(llama.generate, ids, 40) if device.type == "cpu" else None
    threshold = gc.get_threshold()
    del runner, old_model
    try:
        gc.set_threshold(1, 1, 1)
        with opened(llama, attention, capturer_for(device)) as session:
            got = ask(llama.generate, ids, 40)
            assert steps_of(session) == (39, 0)
            assert_same(got, expected or ask(session.eager, ids, 40))
    finally:
        gc.set_threshold(*threshold)
    gc.collect()
    assert gone() is None


FIRST = """
import sys
sys.path.insert(0, {tests!r})
import torch
from runtime_models import make_llama, prompt
from runtime_outputs import ask, assert_same, steps_of
from sessions import open_session
from exactgraph.candidates.base import Context
from exactgraph.capture import capturer_for
llama = make_llama(torch.device("cuda", 0))
context = Context(capturer_for(llama.device), 64, 64, 128)
with open_session(llama, {name!r}, context, "flash") as session:
    ids = prompt(llama.device, 12)
    got = ask(llama.generate, ids)
    assert session.last is not None and session.last.refusal is None
    assert_same(got, ask(session.eager, ids))
"""


@pytest.mark.gpu
@pytest.mark.parametrize("name", SERVED)
def test_fault_15_the_first_work_on_the_gpu_is_ours(name: str, tmp_path: Path) -> None:
    """Nothing has made cuBLAS handles or compiled a kernel before planning captures."""
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path / "triton"), "CUDA_CACHE_PATH": str(tmp_path / "cuda")}
    program = FIRST.format(tests=str(Path(__file__).parent), name=name)
    ended = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=280)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("name", SERVED)
@pytest.mark.parametrize(
    "arguments",
    [{"do_sample": True}, {"num_beams": 3}, {"num_beams": 2, "do_sample": True}],
    ids=lambda given: "+".join(given),
)
def test_fault_21_a_seed_gives_eagers_tokens(llama: Any, install: Install, name: str, arguments: dict[str, Any]) -> None:
    ids = prompt(llama.device, 12)
    with install(name) as session:
        for seed in (1, 2):
            torch.manual_seed(seed)
            expected = session.eager(ids, max_new_tokens=20, **{"do_sample": False, **arguments})
            after = torch.rand(4, device=llama.device)
            torch.manual_seed(seed)
            got = llama.generate(ids, max_new_tokens=20, **{"do_sample": False, **arguments})
            assert torch.equal(got, expected)
            assert torch.equal(torch.rand(4, device=llama.device), after)
        if "num_beams" in arguments and name == "step":
            assert refusal_of(session) == "generation-mode"


def test_fault_22_graphs_and_memory_level_off(llama: Any, attention: str) -> None:
    # A mask or a loop over heads knows no lengths on the device: each length has a graph of its own.
    llama.set_attn_implementation("eager")
    capturer = capturer_for(llama.device)
    with opened(llama, attention, capturer, budget=24) as session:
        # Fifty lengths of prompts, more than there is a budget for; then the same ones again.
        for tokens in range(5, 55):
            llama.generate(prompt(llama.device, tokens), max_new_tokens=3, do_sample=False)
        graphs, taken = capturer.graphs, _taken(llama.device)
        # One was captured at planning, and dropped; one chooses tokens.
        assert graphs == 26
        for tokens in range(5, 55):
            llama.generate(prompt(llama.device, tokens), max_new_tokens=3, do_sample=False)
        assert capturer.graphs == graphs
        assert _taken(llama.device) == taken
        assert session.steps.captured
        assert session.steps.eager


def _taken(device: torch.device) -> int:
    """Bytes that torch has reserved on a GPU."""
    return torch.cuda.memory_reserved(device) if device.type == "cuda" else 0


class Masked(nn.Module):
    """An MLP that works on the positive half of its input alone, by a boolean index."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        kept = hidden > 0
        result: torch.Tensor = self.inner(hidden)
        result[kept] = hidden[kept]
        return result


def _masked(device: torch.device) -> Any:
    model = make_llama(device)
    model.model.layers[0].mlp = Masked(model.model.layers[0].mlp)
    return model


def _experts(device: torch.device) -> Any:
    return make("qwen3-moe", device, experts_implementation="eager")


@pytest.mark.parametrize("build", [_masked, _experts])
def test_fault_27_what_synchronises_is_refused_when_qualified(device: torch.device, build: Any) -> None:
    capturer = capturer_for(device)
    model = build(device)
    with pytest.raises(Refused, match="for which the host waits") as caught:
        candidate("step").plan(model, Context(capturer, 64, 24, 48))
    assert caught.value.refusal.reason == "synchronises"
    assert capturer.graphs == 0
