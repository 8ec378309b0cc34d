"""The attention backend that a baseline was recorded under.

``default`` leaves PyTorch's choice alone. Anything else pins ``scaled_dot_product_attention`` to one backend, for eager and
candidate alike: a pin is part of the reference, so every fallback to eager runs under it too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch.nn.attention import SDPBackend

from exactgraph.runtime.pins import PINS

DEFAULT = "default"
BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}


@contextmanager
def pinned(name: str) -> Iterator[None]:
    """Run the block under the attention backend ``name`` and no other; what it cannot do raises ``RuntimeError``."""
    with PINS.held(() if name == DEFAULT else (BACKENDS[name],)):
        yield


@contextmanager
def preferred(name: str) -> Iterator[None]:
    """Run the block under the pin ``name`` as a user's calls need it.

    Whatever the pinned backend can do it does, with the bits of :func:`pinned`. What it cannot (flash takes no mask, so no
    padded prompt) goes to the math backend rather than failing: a pin takes no call away that eager serves.
    """
    with PINS.held(() if name == DEFAULT else (BACKENDS[name], SDPBackend.MATH)):
        yield
