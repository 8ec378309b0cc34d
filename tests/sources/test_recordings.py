"""Recordings as samples, and the windows that are cut from them."""

from __future__ import annotations

import wave
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from exactgraph.canonical import read_json, write_json
from exactgraph.protocol import prompts
from exactgraph.refusal import UserError
from exactgraph.sources import audio, windows
from exactgraph.sources.download import download
from exactgraph.sources.random_weights import write_model
from exactgraph.sources.recordings import CUTS
from exactgraph.sources.resolve import resolve


def write_wav(file: Path, samples: np.ndarray, rate: int, channels: int = 1) -> None:  # type: ignore[type-arg]
    with wave.open(str(file), "wb") as opened:
        opened.setnchannels(channels)
        opened.setsampwidth(2)
        opened.setframerate(rate)
        opened.writeframes((samples * 32767).astype("<i2").tobytes())


def tone(hertz: float, rate: int) -> np.ndarray:  # type: ignore[type-arg]
    return 0.5 * np.sin(2 * np.pi * hertz * np.arange(rate) / rate)


def test_a_tone_keeps_its_pitch_and_what_16_khz_cannot_hold_goes(tmp_path: Path) -> None:
    file = tmp_path / "a.wav"
    write_wav(file, tone(1000, 48000), 48000)
    samples = audio.read(file)
    assert (samples.dtype, samples.shape) == (np.float32, (16000,))
    middle = slice(1000, 15000)
    assert np.abs(samples[middle] - tone(1000, 16000)[middle]).max() < 0.005
    write_wav(file, tone(10000, 48000), 48000)  # would come back as 6 kHz
    assert np.abs(audio.read(file)[middle]).max() < 0.005


def test_at_16_khz_samples_stay_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "a.wav"
    write_wav(file, np.array([0.0, 1.0, -1.0]), 16000)
    assert audio.read(file).tolist() == [0.0, 32767 / 32768, -32767 / 32768]


@pytest.mark.parametrize(("rate", "channels"), [(44100, 1), (16000, 2)])
def test_other_recordings_are_refused(tmp_path: Path, rate: int, channels: int) -> None:
    write_wav(tmp_path / "a.wav", np.zeros(8), rate, channels)
    with pytest.raises(UserError, match=f"has {channels} channels of 16 bits at {rate} Hz"):
        audio.read(tmp_path / "a.wav")
    (tmp_path / "a.wav").write_bytes(b"RIFF")
    with pytest.raises(UserError, match="is no WAV file"):
        audio.read(tmp_path / "a.wav")


def test_there_is_a_window_for_each_prompt_and_no_two_are_alike() -> None:
    assert {name: len(cuts) for name, cuts in CUTS.items()} == {name: len(prompts.load(name)) for name in prompts.SETS}
    every = list(chain(*CUTS.values()))
    assert len(set(every)) == len(every)
    assert all(cut.seconds <= 30 and cut.start + cut.seconds <= 44.3 for cut in every)


def test_seeded_windows_are_the_same_everywhere_and_for_one_seed_alone(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        (tmp_path / name).mkdir()
        write_model("tiny-whisper", seed, tmp_path / name)
    assert (tmp_path / "a" / windows.FILE).read_bytes() == (tmp_path / "b" / windows.FILE).read_bytes()
    first, other = windows.read(tmp_path / "a", "heldout"), windows.read(tmp_path / "c", "heldout")
    assert (first.shape, first.dtype) == ((6, 16, 64), np.float32)
    assert not np.array_equal(first, other)
    assert not np.array_equal(first[0], first[1])
    assert abs(first.std() - 0.5) < 0.02


def test_a_folder_without_windows_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no windows of set 'heldout'"):
        windows.read(tmp_path, "heldout")


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recording of noise in place of the one from the package index."""

    def fetch(folder: Path) -> Path:
        folder.mkdir(parents=True)
        write_wav(folder / "noise.wav", np.random.default_rng(0).uniform(-0.5, 0.5, 45 * 16000), 16000)
        return folder / "noise.wav"

    monkeypatch.setattr("exactgraph.sources.recordings.fetch", fetch)


def speech_folder(folder: Path) -> Path:
    folder.mkdir()
    write_model("tiny-whisper", 0, folder)
    (folder / windows.FILE).unlink()
    extractor = {"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": 16}
    write_json(folder / "preprocessor_config.json", extractor)
    return folder


@pytest.mark.usefixtures("recorded")
def test_a_speech_model_from_a_folder_gets_windows_too(tmp_path: Path) -> None:
    resolved = resolve(f"path:{speech_folder(tmp_path / 'mine')}")
    download(resolved, tmp_path / "model", tmp_path / "model.json")
    manifest = read_json(tmp_path / "model.json")
    assert manifest["prompts"] == "windows"
    assert {"preprocessor_config.json", "windows.npz"} <= set(manifest["files"])
    heard = windows.read(tmp_path / "model", "heldout")
    assert (heard.shape, heard.dtype) == ((6, 16, 3000), np.float32)
    # The third window has 25 s, and silence after them.
    assert heard[2, :, 2510:].max() == heard[2].min()
    assert heard[2, :, :2490].min() > heard[2].min()
    download(resolved, tmp_path / "again", tmp_path / "again.json")
    assert (tmp_path / "again" / windows.FILE).read_bytes() == (tmp_path / "model" / windows.FILE).read_bytes()


@pytest.mark.usefixtures("recorded")
def test_a_speech_model_that_does_not_say_how_it_hears_is_refused(tmp_path: Path) -> None:
    folder = speech_folder(tmp_path / "mine")
    (folder / "preprocessor_config.json").unlink()
    with pytest.raises(UserError, match=r"has no preprocessor_config\.json, which says how a speech model hears"):
        download(resolve(f"path:{folder}"), tmp_path / "model", tmp_path / "model.json")
    assert not (tmp_path / "model").exists()
