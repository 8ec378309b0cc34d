"""A speech model of the user's own class, with guidance inside it, through the stages: code of the model's own."""

from __future__ import annotations

from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
import torch
from small_whisper import CPU, make_heard
from transformers import AutoModelForSpeechSeq2Seq, WhisperForConditionalGeneration

from exactgraph.candidates.registry import candidate
from exactgraph.canonical import read_json, write_json
from exactgraph.guidance.doubled import Guided, Unconditional
from exactgraph.guidance.processors import ClassifierFree
from exactgraph.protocol.tasks import is_speech, stop_at_length
from exactgraph.protocol.trace import record_sets
from exactgraph.protocol.window_ways import equal, grade
from exactgraph.runtime.load import load_model
from exactgraph.stages.context import context_of
from exactgraph.stages.loaded import Loaded
from exactgraph.stages.validate import _validate


class Own(Guided, WhisperForConditionalGeneration):
    """What a user's folder would bring along as code."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.guidance = Unconditional("first", encoded="zeros")

    def prepare_inputs_for_generation(self, input_ids: torch.Tensor, **kwargs: Any) -> Any:
        return super().prepare_inputs_for_generation(input_ids, decoder_guidance=self.guidance, **kwargs)

    # generate reads the names of its arguments.
    @wraps(WhisperForConditionalGeneration.forward)
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output = super().forward(*args, **kwargs)
        output.logits = ClassifierFree(3.0, "first").apply(output.logits)
        return output


def load_own(folder: Path, **loading: Any) -> Any:
    assert loading.pop("trust_remote_code")
    return Own.from_pretrained(folder, **loading)


@pytest.fixture
def guided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Loaded:
    """The seeded Whisper as a model of such a class, loaded from its folder, with its own baseline."""
    heard = make_heard(tmp_path)
    folder = tmp_path / "model"
    config = read_json(folder / "config.json")
    own = {"architectures": ["Own"], "auto_map": {"AutoModelForSpeechSeq2Seq": "modeling_own.Own"}}
    write_json(folder / "config.json", config | own)
    # In place of transformers' import of the folder's code, which lasts for the process.
    monkeypatch.setattr(AutoModelForSpeechSeq2Seq, "from_pretrained", load_own)
    model = load_model(folder, "fp32", CPU, remote_code=True)
    stop_at_length(model)
    plain = heard.place.frozen()["sets"]
    traces = record_sets(model.generate, heard.questions, CPU, lambda name: None)
    assert traces["heldout"][0]["logits"] != plain["heldout"][0]["logits"], "guidance makes no difference"
    write_json(tmp_path / "frozen.json", {"status": "frozen", "attention": "default", "sets": traces})
    windows = {"encoder_batch": 2, "device_mib": 1, "parallel": 2}
    return replace(heard, model=model, protocol={**heard.protocol, "windows": windows})


def test_guidance_in_a_class_of_ones_own_is_captured_and_asked_about_windows(guided: Loaded) -> None:
    step = candidate("encdec-step")
    result = _validate(guided, step, step.plan(guided.model, context_of(guided)))
    assert (result["status"], result["why"]) == ("exact", None)
    assert result["grade"] == "bit-identical"
    assert result["measured"]["captured_steps"] > 0
    assert grade(result["windows"], "captured") == "bit-identical"
    assert equal(result["windows"], "eager", "parallel") == (2, 2)


def test_one_rounding_is_seen(guided: Loaded) -> None:
    assert _validate(guided, candidate("wrong-ulp"), {})["status"] == "rejected"


@pytest.mark.parametrize(
    ("config", "hears"),
    [
        ({"architectures": ["WhisperForConditionalGeneration"]}, True),
        ({"architectures": ["Own"], "auto_map": {"AutoModelForSpeechSeq2Seq": "own.Own"}}, True),
        ({"architectures": ["Own"], "auto_map": {"AutoModelForCausalLM": "own.Own"}}, False),
        ({"architectures": ["LlamaForCausalLM"], "auto_map": None}, False),
        ({}, False),
    ],
)
def test_what_hears(config: dict[str, object], hears: bool) -> None:
    assert is_speech(config) == hears
