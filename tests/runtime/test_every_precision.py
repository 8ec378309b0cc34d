"""Every precision that a run may be asked for: fp32 too, where flash attention has no say on a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from encdec_models import make, question
from runtime_models import make_llama, prompt
from runtime_outputs import EVERYTHING, assert_same, steps_of
from sessions import open_session, planned

from exactgraph.candidates.base import Context
from exactgraph.capture import capturer_for
from exactgraph.runtime.load import DTYPES

TOKENS = 20


def _asked(name: str, device: torch.device) -> tuple[Any, dict[str, Any]]:
    if name == "step":
        return make_llama(device), {"input_ids": prompt(device, 12)}
    model = make("whisper", device)
    return model, question(model)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("name", ["step", "encdec-step"])
def test_every_precision_has_eagers_bits(device: torch.device, name: str, precision: str) -> None:
    attention = "default" if device.type == "cpu" else "math" if precision == "fp32" else "flash"
    model, inputs = _asked(name, device)
    model.to(DTYPES[precision])
    inputs = {key: value.to(model.dtype) if value.is_floating_point() else value for key, value in inputs.items()}

    def ask(generate: Any) -> Any:
        return generate(**inputs, max_new_tokens=TOKENS, do_sample=False, **EVERYTHING)

    with open_session(model, name, Context(capturer_for(device), 64, 32, 64), attention) as session:
        expected = ask(session.eager)
        assert expected.logits[0].shape[0] == 1
        for _ in range(2):
            assert_same(ask(model.generate), expected)
            assert steps_of(session) == (TOKENS - 1, 0)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["step", "encdec-step"])
def test_fp32_on_a_gpu_has_a_graph_for_each_length_and_says_why(device: torch.device, name: str) -> None:
    if device.type == "cpu":
        pytest.skip("The emulation attends in any precision.")
    model, _ = _asked(name, device)
    decisions = planned(model.to(torch.float32), name, Context(capturer_for(device), 64, 32, 64), "math")
    found = decisions["lanes" if name == "step" else "classes"]
    assert found
    for each in found:
        assert each["classes" if name == "step" else "lengths"] == []
        assert "float32, which flash attention does not" in each["why"]
