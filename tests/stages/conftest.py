"""What tests of stages share."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_model import make_loaded

from exactgraph.stages.loaded import Loaded


@pytest.fixture
def loaded(tmp_path: Path) -> Loaded:
    return make_loaded(tmp_path)
