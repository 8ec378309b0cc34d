"""Compile caches that belong to one process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from exactgraph.environment.caches import own_caches
from exactgraph.environment.variables import bit_changing


def test_caches_begin_empty_and_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", "/a/users/own")
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    seen = []
    for _ in range(2):
        with own_caches():
            folders = [Path(os.environ[name]) for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")]
            assert not any(folder.exists() for folder in folders)
            for folder in folders:
                folder.mkdir()
                (folder / "kernel").touch()
            seen += folders
    assert len(set(seen)) == 4
    assert not any(folder.exists() for folder in seen)
    assert os.environ["TRITON_CACHE_DIR"] == "/a/users/own"
    assert "TORCHINDUCTOR_CACHE_DIR" not in os.environ


def test_where_caches_lie_is_no_part_of_an_environment_and_what_compilers_are_told_is() -> None:
    variables = {"TORCHINDUCTOR_CACHE_DIR": "/a", "TORCHINDUCTOR_COMPILE_THREADS": "1", "TORCHINDUCTOR_MAX_AUTOTUNE": "1"}
    assert bit_changing(variables) == {"TORCHINDUCTOR_MAX_AUTOTUNE": "1"}
