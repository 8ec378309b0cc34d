"""Compile caches of one process.

Compilers keep what they compiled and which kernels won their trials, and a later process would take both over. A process
that is to show what a fresh one does begins with empty caches, and leaves none behind.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

# The last one is where transformers copies a model's own code to before it runs it, which processes must not do to each other.
_VARIABLES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "HF_MODULES_CACHE")


@contextmanager
def own_caches() -> Iterator[None]:
    """Empty compile caches in the block, for this process and those that it starts. Enter it before torch is imported."""
    # A compiler's helpers may still write while the folder is being removed.
    with (
        tempfile.TemporaryDirectory(prefix="exactgraph-caches-", ignore_cleanup_errors=True) as folder,
        patch.dict(os.environ, {name: os.path.join(folder, name.lower()) for name in _VARIABLES}),
    ):
        yield
