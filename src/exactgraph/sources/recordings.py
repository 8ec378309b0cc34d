"""The recordings that speech models are asked about, and the windows cut from them. Free of torch.

One recording, of a public-domain text (the opening of Dickens' "A Tale of Two Cities", 1859, 44 s), from a package under the
MIT licence, whose LICENSE and README name no other terms for it. It is fetched by its digest and never part of this project.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from exactgraph.sources import pypi

PACKAGE, VERSION = "moonshine-voice", "0.1.5"
# The package has a wheel for each system; of this one only data is used, which every machine can read.
_PLATFORM = "manylinux_2_34_x86_64"
RECORDING = "two_cities.wav"
SHA256 = "f3348494d77cb74a02862f5e685ed09faf3e75832c5cc5c80703282c2cd8b52e"
_MEMBER = f"moonshine_voice/assets/{RECORDING}"


# Tokens. Whisper's decoder has 448 positions, of which up to 4 are taken by the tokens that it begins with.
LONGEST_ANSWER = 444


class Cut(NamedTuple):
    """A part of the recording: where it starts and how long it is, in seconds."""

    start: float
    seconds: float


# No two are alike, and each holds more speech than 64 tokens say. Whisper hears at most 30 s at once.
CUTS: dict[str, tuple[Cut, ...]] = {
    "heldout": (Cut(0, 30), Cut(14, 30), Cut(6, 25), Cut(10.5, 28), Cut(3, 22), Cut(18, 26)),
    "confirm": (Cut(2, 30), Cut(12, 30), Cut(8, 24), Cut(4.5, 27), Cut(16, 23), Cut(20, 24)),
    "long": (Cut(1, 29),),
}


def fetch(folder: Path) -> Path:
    """Fetch the recording into ``folder``; returns its path."""
    pypi.take(PACKAGE, VERSION, {_MEMBER: SHA256}, folder, _PLATFORM)
    return folder / RECORDING


def facts() -> dict[str, Any]:
    """What fixes the recording, for a source's facts."""
    return {"package": PACKAGE, "version": VERSION, "file": _MEMBER, "sha256": SHA256}


def windows(name: str) -> list[dict[str, Any]]:
    """The windows of a set as ``[{"id": "heldout/0", "recording", "start", "seconds"}, …]``; times in seconds."""
    return [
        {"id": f"{name}/{index}", "recording": f"{PACKAGE}=={VERSION}/{RECORDING}", **cut._asdict()}
        for index, cut in enumerate(CUTS[name])
    ]
