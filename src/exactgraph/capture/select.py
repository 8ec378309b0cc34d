"""Which capture a device gets."""

from __future__ import annotations

import torch

from exactgraph.capture.cuda import CudaCapturer
from exactgraph.capture.emulated import EmulatedCapturer
from exactgraph.capture.graph import Capturer


def capturer_for(device: torch.device) -> Capturer:
    """A new capturer: real on an NVIDIA GPU, emulated elsewhere."""
    return CudaCapturer(device) if device.type == "cuda" else EmulatedCapturer()
