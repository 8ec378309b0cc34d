"""A WAV file as the samples that speech models are made for."""

from __future__ import annotations

import wave
from pathlib import Path
from typing import Any

import numpy as np

from exactgraph.refusal import UserError

RATE = 16000
_ZEROS = 32  # zero crossings of the filter on each side

Samples = np.ndarray[Any, np.dtype[np.float32]]


def read(file: Path) -> Samples:
    """Samples of a 16-bit mono WAV file at 16 kHz, between -1 and 1. Its own rate has to be 16 kHz or a multiple of it."""
    try:
        with wave.open(str(file)) as opened:
            channels, width, rate = opened.getnchannels(), opened.getsampwidth(), opened.getframerate()
            data = opened.readframes(opened.getnframes())
    except (wave.Error, EOFError) as error:
        raise UserError(f"{file} is no WAV file that can be read ({error}).") from error
    if (channels, width) != (1, 2) or rate % RATE:
        raise UserError(
            f"{file} has {channels} channels of {8 * width} bits at {rate} Hz; one channel of 16 bits is read, at "
            f"{RATE} Hz or a multiple of it."
        )
    return _decimate(np.frombuffer(data, "<i2").astype(np.float64) / 32768, rate // RATE)


def _decimate(samples: np.ndarray[Any, np.dtype[np.float64]], factor: int) -> Samples:
    """One sample of ``factor``, after a low-pass filter (a Hann-windowed sinc) at the new Nyquist frequency."""
    if factor == 1:
        return samples.astype(np.float32)
    places = np.arange(-_ZEROS * factor, _ZEROS * factor + 1)
    kernel = np.sinc(places / factor) * np.hanning(len(places))
    return np.convolve(samples, kernel / kernel.sum(), "same")[::factor].astype(np.float32)
