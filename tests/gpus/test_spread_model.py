"""A model spread over two GPUs is refused by name, however it was spread, and answers as eager does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from runtime_models import make_llama, prompt
from runtime_outputs import ask, assert_same, refusal_of
from sessions import planned

from exactgraph.candidates.base import Context
from exactgraph.candidates.registry import candidate
from exactgraph.capture import capturer_for
from exactgraph.refusal import Refused
from exactgraph.runtime.session import Session

pytestmark = pytest.mark.gpu(2)

#: Modules of the runtime's llama of three layers, by GPU.
SPREAD = {
    **dict.fromkeys(["model.embed_tokens", "model.rotary_emb", "model.layers.0"], 0),
    **dict.fromkeys(["model.layers.1", "model.layers.2", "model.norm", "lm_head"], 1),
}
SERVED = ["step", "C022"]


def opened(llama: Any, name: str) -> Session:
    """A session on ``llama`` with what was planned for the same model on one GPU."""
    context = Context(capturer_for(llama.device), 64, 64, 128)
    decisions = planned(make_llama(llama.device), name, context, "flash")
    return Session(llama, candidate(name), decisions, context, "flash")


@pytest.mark.parametrize("name", SERVED)
def test_a_device_map_is_refused(gpus: list[torch.device], tmp_path: Path, name: str) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    make_llama(gpus[0]).save_pretrained(tmp_path)
    spread = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, device_map=SPREAD, dtype=torch.bfloat16).eval()
    assert {parameter.device for parameter in spread.parameters()} == set(gpus)
    with pytest.raises(Refused) as caught:
        opened(spread, name)
    assert caught.value.refusal.reason in ("hooks", "devices")
    assert caught.value.refusal.sentence.endswith(".")
    # And it was left as it was.
    ids = prompt(gpus[0], 12)
    assert_same(ask(spread.generate, ids), ask(spread.generate, ids))


@pytest.mark.parametrize("name", SERVED)
def test_a_layer_on_another_gpu_is_refused(gpus: list[torch.device], name: str) -> None:
    llama = make_llama(gpus[0])
    llama.model.layers[2].to(gpus[1])
    with pytest.raises(Refused, match=r"model\.layers\.2\..* is on cuda:1 and the model on cuda:0") as caught:
        opened(llama, name)
    assert caught.value.refusal.reason == "devices"


@pytest.mark.parametrize("name", SERVED)
def test_a_model_that_is_spread_after_capture_runs_eager(gpus: list[torch.device], name: str) -> None:
    accelerate = pytest.importorskip("accelerate")
    llama = make_llama(gpus[0])
    ids = prompt(gpus[0], 12)
    with opened(llama, name) as session:
        ask(llama.generate, ids)
        assert session.last is not None
        assert session.last.refusal is None
        accelerate.dispatch_model(llama, SPREAD, main_device=0)
        got = ask(llama.generate, ids)
        assert refusal_of(session) in ("hooks", "devices")
        assert_same(got, ask(session.eager, ids))
