"""A speech model with a tied head: the real stages, a bundle of the receipt, and then the user's own program."""

from __future__ import annotations

import warnings
import wave
from pathlib import Path
from typing import Any

import confirmed_key
import numpy as np
import pytest
import torch
from runtime_outputs import EVERYTHING, assert_same
from transformers import WhisperConfig, WhisperForConditionalGeneration

import exactgraph
from exactgraph.canonical import write_json
from exactgraph.receipts.bundle import export_bundle

_SIDES = {"layers": 2, "attention_heads": 4, "ffn_dim": 128}
CONFIG = WhisperConfig(
    d_model=64,
    vocab_size=256,
    num_mel_bins=16,
    max_source_positions=100,
    max_target_positions=128,
    init_std=0.2,
    suppress_tokens=None,
    begin_suppress_tokens=None,
    decoder_start_token_id=0,
    bos_token_id=1,
    eos_token_id=1,
    pad_token_id=1,
    **{f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in _SIDES.items()},
)


@pytest.fixture
def whisper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a tiny Whisper, stored in fp32, that hears noise in place of the recording."""

    def fetch(folder: Path) -> Path:
        folder.mkdir(parents=True)
        samples = np.random.default_rng(0).uniform(-0.5, 0.5, 45 * 16000)
        with wave.open(str(folder / "noise.wav"), "wb") as opened:
            opened.setparams((1, 2, 16000, 0, "NONE", ""))
            opened.writeframes((samples * 32767).astype("<i2").tobytes())
        return folder / "noise.wav"

    monkeypatch.setattr("exactgraph.sources.recordings.fetch", fetch)
    torch.manual_seed(0)
    folder = tmp_path / "mine"
    WhisperForConditionalGeneration(CONFIG).save_pretrained(folder)
    hears = {"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": 16, "chunk_length": 2}
    write_json(folder / "preprocessor_config.json", hears)
    return folder


def test_a_bundle_is_enough_for_a_tied_head(whisper: Path, tmp_path: Path) -> None:
    confirmed = confirmed_key.make(tmp_path / "store", ["encdec-step"], "fp32", speech=f"path:{whisper}")
    export_bundle(confirmed.receipt, tmp_path / "receipt.bundle")
    model: Any = WhisperForConditionalGeneration.from_pretrained(confirmed.model)
    assert model.proj_out.weight is model.model.decoder.embed_tokens.weight
    heard = {"input_features": torch.randn(1, 16, 200), "max_new_tokens": 12, "do_sample": False}
    expected = model.generate(**heard, **EVERYTHING)
    with warnings.catch_warnings(action="ignore", category=exactgraph.NotOptimizedWarning):
        exactgraph.optimize(model, tmp_path / "receipt.bundle", require=True)
    assert model.exactgraph.plan.candidate == "encdec-step"
    assert_same(model.generate(**heard, **EVERYTHING), expected)
    assert model.exactgraph.session.served == 1
    exactgraph.restore(model)
