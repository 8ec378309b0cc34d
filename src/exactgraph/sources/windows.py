"""``windows.npz`` in a speech model's folder: what it hears, as its own features.

Features are made once, where the model is downloaded, and not in each process: their last bits depend on the CPU, and what
is asked has to be the same bits in every process of a baseline. An array for each set, fp32: ``(windows, mel bins, frames)``
of a Whisper, ``(windows, …)`` as its feature extractor gives them of another model, or raw audio ``(windows, samples)``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from exactgraph.refusal import UserError
from exactgraph.sources import audio
from exactgraph.sources.random_bits import normal
from exactgraph.sources.recordings import CUTS
from exactgraph.sources.whisper_shape import WhisperShape

FILE = "windows.npz"
_LONGEST = 30  # s
_STD = 0.5  # of log-mel features of speech, which lie between about -1 and 1.5

Features = np.ndarray[Any, np.dtype[np.float32]]


def write(folder: Path, recording: Path, raw: bool) -> None:
    """Cut ``recording`` and write what the feature extractor in ``folder`` makes of each window, padded to 30 s.

    Without a preprocessor_config.json, a model that may hear ``raw`` audio is given the samples, 16,000 a second, in -1 to 1.
    """
    if (folder / "preprocessor_config.json").is_file():
        features_of = _extractor(folder)
    elif raw:
        features_of = _padded
    else:
        raise UserError("The model has no preprocessor_config.json, which says how a speech model hears: it is incomplete.")
    samples = audio.read(recording)
    sets: dict[str, Features] = {}
    for name, cuts in CUTS.items():
        parts = [samples[int(cut.start * audio.RATE) : int((cut.start + cut.seconds) * audio.RATE)] for cut in cuts]
        sets[name] = np.ascontiguousarray(features_of(parts), dtype=np.float32)
    _write(folder, sets)


def _extractor(folder: Path) -> Callable[[list[Features]], Features]:
    from transformers import AutoFeatureExtractor

    extractor = AutoFeatureExtractor.from_pretrained(folder, local_files_only=True)
    # Whisper's says itself how much it hears at once.
    longest = getattr(extractor, "n_samples", _LONGEST * audio.RATE)
    asked = {"sampling_rate": audio.RATE, "return_tensors": "np", "padding": "max_length", "truncation": True}

    def features_of(parts: list[Features]) -> Features:
        made: Features = extractor(parts, max_length=longest, **asked)[extractor.model_input_names[0]]
        return made

    return features_of


def _padded(parts: list[Features]) -> Features:
    samples = np.zeros((len(parts), _LONGEST * audio.RATE), np.float32)
    for row, part in zip(samples, parts, strict=True):
        row[: len(part)] = part
    return samples


def write_seeded(folder: Path, shape: WhisperShape, seed: int) -> None:
    """Write seeded features for as many windows, of the size and the scale of real ones."""
    frames = 2 * shape.max_source  # the encoder's second convolution halves them
    sets: dict[str, Features] = {}
    for name, cuts in CUTS.items():
        parts = [
            np.concatenate(list(normal((shape.mel_bins, frames), 0.0, _STD, seed, f"window/{name}/{index}")))
            for index in range(len(cuts))
        ]
        sets[name] = np.stack(parts).reshape(len(cuts), shape.mel_bins, frames)
    _write(folder, sets)


def read(folder: Path, name: str) -> Features:
    """The windows of one set."""
    try:
        with np.load(folder / FILE, allow_pickle=False) as sets:
            features: Features = sets[name]
            return features
    except (OSError, KeyError, ValueError) as error:
        raise UserError(
            f"{folder} has no windows of set {name!r} to transcribe ({error}): download the model again."
        ) from error


def _write(folder: Path, sets: dict[str, Features]) -> None:
    arrays: dict[str, Any] = dict(sets)
    with open(folder / FILE, "wb") as file:
        np.savez(file, **arrays)
