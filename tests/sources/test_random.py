"""Seeded weights: the same everywhere, loadable, and with traces worth comparing."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM, WhisperConfig, WhisperForConditionalGeneration

from exactgraph.canonical import read_json
from exactgraph.protocol.questions import questions
from exactgraph.protocol.tasks import stop_at_length
from exactgraph.protocol.trace import record
from exactgraph.sources import windows
from exactgraph.sources.manifest import weights_digest
from exactgraph.sources.random_weights import write_model
from exactgraph.sources.shapes import SHAPES


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    folder = tmp_path / "tiny"
    folder.mkdir()
    write_model("tiny-llama", 0, folder)
    return folder


def test_bytes_are_the_published_ones(tiny: Path) -> None:
    # A change here is a change of every random model: raise RANDOM_GENERATOR with it.
    assert weights_digest([tiny / "model.safetensors"]) == "d7b900f1c479625b16bda6e48f37a43aecd8f99730f2ad557b1cae3055848244"


def test_another_seed_is_another_model(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    write_model("tiny-llama", 1, tmp_path / "other")
    for name, values in load_file(tmp_path / "other" / "model.safetensors").items():
        assert not torch.equal(values, load_file(tiny / "model.safetensors")[name]), name
    assert read_json(tiny / "prompts.json") != read_json(tmp_path / "other" / "prompts.json")


def test_values_do_not_depend_on_the_chunk_size(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("exactgraph.sources.random_bits._CHUNK", 1000)
    (tmp_path / "chunked").mkdir()
    write_model("tiny-llama", 0, tmp_path / "chunked")
    assert (tmp_path / "chunked" / "model.safetensors").read_bytes() == (tiny / "model.safetensors").read_bytes()


def test_values_have_the_stated_distribution(tiny: Path) -> None:
    state = load_file(tiny / "model.safetensors")
    embedding = state["model.embed_tokens.weight"].float()
    assert abs(embedding.mean()) < 0.03
    assert abs(embedding.std() - 1) < 0.03
    assert abs(state["lm_head.weight"].float().std() - 2 / 8) < 0.01
    assert abs(state["model.norm.weight"].float().mean() - 1) < 0.05
    assert torch.unique(embedding).numel() > 1000  # fine-grained, not a handful of levels


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_are_what_the_model_class_asks_for(name: str) -> None:
    config = SHAPES[name].config()
    with torch.device("meta"):
        if config["model_type"] == "whisper":
            model: Any = WhisperForConditionalGeneration(WhisperConfig.from_dict(config))
        else:
            model = LlamaForCausalLM(LlamaConfig.from_dict(config))
    assert {key: tuple(value.shape) for key, value in model.state_dict().items()} == SHAPES[name].tensors()
    if name == "minicpm5-1b":
        assert sum(parameter.numel() for parameter in model.parameters()) == 1_080_632_832
        assert model.config.rope_parameters["rope_theta"] == 5e6


def test_prompts_are_varied_and_ordinary(tiny: Path) -> None:
    sets = read_json(tiny / "prompts.json")
    assert {name: len(prompts) for name, prompts in sets.items()} == {"heldout": 6, "confirm": 6, "long": 1}
    prompts = [prompt for each in sets.values() for prompt in each]
    assert len({len(prompt) for prompt in prompts}) == 13
    for prompt in prompts:
        assert prompt[0] == 0  # bos
        assert all(1 < token < 256 for token in prompt[1:])  # neither bos nor eos


def test_traces_are_not_degenerate_and_depend_on_context(tiny: Path) -> None:
    model = LlamaForCausalLM.from_pretrained(tiny, dtype=torch.float32)

    def trace(prompt: list[int]) -> list[int]:
        ids = torch.tensor([prompt])
        mask = torch.ones_like(ids)
        out = model.generate(ids, attention_mask=mask, max_new_tokens=64, min_new_tokens=64, do_sample=False)
        return [int(token) for token in out[0, len(prompt) :]]

    prompts = read_json(tiny / "prompts.json")["heldout"]
    for prompt in prompts:
        tokens = trace(prompt)
        assert len(set(tokens)) >= 24
        tail = tokens[32:]
        assert all(tail[period:] != tail[:-period] for period in range(1, 17)), "fell into a cycle"
    changed = list(prompts[1])
    changed[5] += 1
    assert trace(changed) != trace(prompts[1])


@pytest.fixture(scope="module")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whisper")
    write_model("tiny-whisper", 0, folder)
    return folder


def test_bytes_of_a_speech_model_are_the_published_ones(whisper: Path) -> None:
    assert (
        weights_digest([whisper / "model.safetensors"]) == "5be7382ec497660accbdd19f183fa28b090d3a29495327a45700250b9749d4ab"
    )
    heard = hashlib.sha256(windows.read(whisper, "heldout").tobytes()).hexdigest()
    assert heard == "e3dc0e6f646b795c1757f591c32aa6f0437b2c2574d840a280c1c4fdf6c352a9"


def test_transcripts_are_not_degenerate_and_depend_on_what_is_heard(whisper: Path) -> None:
    model = WhisperForConditionalGeneration.from_pretrained(whisper, dtype=torch.float32)
    stop_at_length(model)
    protocol = {
        "task": "transcribe",
        "dtype": "fp32",
        "sets": {"heldout": {"new_tokens": 64, "prompts": [{"id": f"heldout/{index}"} for index in range(6)]}},
    }
    traces = [
        tuple(record(model.generate, window, torch.device("cpu"))["tokens"])
        for window in questions(protocol, whisper, None, model)["heldout"]
    ]
    assert len(set(traces)) == 6
    for tokens in traces:
        assert len(set(tokens)) >= 24
        tail = tokens[32:]
        assert all(tail[period:] != tail[:-period] for period in range(1, 17)), "fell into a cycle"
