"""Every test of the runtime runs on the CPU through emulated capture and, where there is one, on an NVIDIA GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from runtime_models import make_llama
from sessions import open_session

from exactgraph.candidates.base import Context
from exactgraph.candidates.registry import candidate
from exactgraph.capture import capturer_for
from exactgraph.runtime.session import Session

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param, 0) if request.param == "cuda" else torch.device("cpu")


@pytest.fixture
def attention(device: torch.device) -> str:
    """A backend that reproduces itself on the device."""
    return "flash" if device.type == "cuda" else "default"


@pytest.fixture
def llama(device: torch.device) -> Any:
    return make_llama(device)


@pytest.fixture
def install(llama: Any, attention: str) -> Callable[..., Session]:
    """``install("step", budget=…)``: a session on ``llama``."""

    def build(name: str, budget: int = 512, validated: int = 64, confirmed: int = 256) -> Session:
        context = Context(capturer_for(llama.device), budget, validated, confirmed)
        chosen = candidate(name)
        return open_session(llama, chosen, context, attention)

    return build
