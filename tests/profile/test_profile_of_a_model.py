"""Real recordings of small models, on the CPU and, where there is one, on a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers.cache_utils import Cache

from exactgraph.candidates.base import Context
from exactgraph.candidates.registry import candidate
from exactgraph.capture import capturer_for
from exactgraph.models import parts
from exactgraph.profile.labels import labelled
from exactgraph.profile.reach import reach
from exactgraph.profile.step import figures, record_eager, record_steps, step_ms, work
from exactgraph.protocol.questions import Question
from exactgraph.protocol.timing import ask
from exactgraph.refusal import Refused
from exactgraph.runtime.session import Session

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
QUESTION = Question("heldout/0", tuple(range(3, 20)), 12)
LAYERS = 2


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param, 0) if request.param == "cuda" else torch.device("cpu")


@pytest.fixture
def llama(device: torch.device) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 256,
    }
    return _ready(LlamaForCausalLM(LlamaConfig(num_hidden_layers=LAYERS, **sizes)), device)


@pytest.fixture
def gpt2(device: torch.device) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    return _ready(GPT2LMHeadModel(GPT2Config(n_embd=64, n_layer=LAYERS, n_head=4, vocab_size=256)), device)


def _ready(model: Any, device: torch.device) -> Any:
    model.generation_config.eos_token_id = None
    return model.to(device=device, dtype=torch.bfloat16 if device.type == "cuda" else torch.float32).eval()


def test_a_recorded_answer_is_eagers_and_the_model_is_untouched(llama: Any, device: torch.device) -> None:
    update = Cache.update
    recording = record_eager(llama, QUESTION, device)
    assert recording.tokens == ask(llama.generate, QUESTION, device)[0][: len(recording.tokens)]
    assert not any("forward" in vars(module) for module in llama.modules())
    assert Cache.update is update


def test_an_error_leaves_the_model_untouched(llama: Any) -> None:
    with pytest.raises(ZeroDivisionError), labelled(llama):
        raise ZeroDivisionError
    assert not any("forward" in vars(module) for module in llama.modules())


def test_every_kind_is_found_in_a_llama(llama: Any, device: torch.device) -> None:
    found, step = figures(llama, record_eager(llama, QUESTION, device), None)
    assert set(found["kinds"]) == set(parts.KINDS)
    assert all(kind["share"] > 0 for kind in found["kinds"].values())
    assert sum(kind["share"] for kind in found["kinds"].values()) == pytest.approx(1)
    assert all(step.shares[part] > 0 for part in (parts.INPUT_NORM, parts.QKV, parts.POST_NORM, parts.MLP, parts.FINAL_NORM))
    assert step.shares[parts.MLP] > found["kinds"][parts.ACTIVATION]["share"]


def test_a_model_of_another_layout_has_kinds_and_no_parts(gpt2: Any, device: torch.device) -> None:
    found, step = figures(gpt2, record_eager(gpt2, QUESTION, device), None)
    present = {kind for kind, figure in found["kinds"].items() if figure["share"] > 0}
    assert present == set(parts.KINDS) - {parts.ROTARY}
    assert reach(step, (parts.MLP,)) is None


def test_a_short_answer_is_refused(llama: Any, device: torch.device) -> None:
    with pytest.raises(Refused, match="An answer of 3 tokens is too short"):
        record_eager(llama, Question("heldout/0", (3, 4), 3), device)


@pytest.mark.gpu
def test_a_gpus_step_adds_up() -> None:
    device = torch.device("cuda", 0)
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    model = _ready(LlamaForCausalLM(LlamaConfig(num_hidden_layers=LAYERS, hidden_size=512, vocab_size=256)), device)
    recording = record_eager(model, QUESTION, device)
    answers, measured = step_ms(model.generate, QUESTION, device)
    assert all(answer == answers[0][: len(answer)] for answer in answers)
    found, _ = figures(model, recording, measured)
    gpu = found["gpu"]
    assert gpu["busy_ms"] + gpu["launch_gap_ms"] + gpu["host_ms"] == pytest.approx(measured)
    assert gpu["kernels"] == pytest.approx(sum(kind["kernels"] for kind in found["kinds"].values()))
    assert found["kinds"][parts.PROJECTION]["kernels"] >= 7 * LAYERS
    assert gpu["graph_launches"] == 0
    assert gpu["launches"] == pytest.approx(gpu["kernels"], rel=0.2)


@pytest.mark.gpu
def test_after_capture_the_same_kernels_need_fewer_launches() -> None:
    device = torch.device("cuda", 0)
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    model = _ready(LlamaForCausalLM(LlamaConfig(num_hidden_layers=LAYERS, hidden_size=512, vocab_size=256)), device)
    figures_of = {}
    for name in ("null", "C026", "step"):
        chosen, context = candidate(name), Context(capturer_for(device), 64, 40, 40)
        decisions = chosen.plan(model, context) if chosen.plans else {}
        with Session(model, chosen, decisions, context, "flash") as session:
            ask(session.generate, QUESTION, device)  # captures what is captured when it is first met
            recording = record_steps(session.generate, QUESTION, device)
            assert recording.tokens == ask(session.eager, QUESTION, device)[0][: len(recording.tokens)]
            figures_of[name] = work(recording)
    assert figures_of["null"]["graph_launches"] == 0
    assert figures_of["C026"]["graph_launches"] == 2 * LAYERS + 2
    assert figures_of["step"]["graph_launches"] == 1
    launches = [figures_of[name]["launches"] for name in ("null", "C026", "step")]
    assert launches == sorted(launches, reverse=True)
    assert figures_of["step"]["kernels"] > 10 * LAYERS
