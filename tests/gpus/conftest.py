"""Two GPUs of one host, with the small models of the runtime's tests."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).resolve().parents[1] / "runtime"))


@pytest.fixture(autouse=True)
def gpus() -> Iterator[list[torch.device]]:
    """The first two; the first is current before and after a test."""
    torch.cuda.set_device(0)
    yield [torch.device("cuda", 0), torch.device("cuda", 1)]
    torch.cuda.set_device(0)
    gc.collect()
    torch.cuda.empty_cache()
