from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from exactgraph.environment import nvml, signature
from exactgraph.environment.variables import bit_changing


def fresh(**variables: str) -> str:
    """The signature of a fresh process, which must not have imported torch."""
    code = (
        "import sys; from exactgraph.environment.signature import signature; s = signature(); "
        "assert not {'torch', 'transformers'} & set(sys.modules); print(s)"
    )
    return subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **variables}, check=True, capture_output=True, text=True
    ).stdout.strip()


def test_it_is_stable_and_needs_no_torch() -> None:
    first = fresh()
    assert first == fresh(OMP_NUM_THREADS="1", CUDNN_LOGINFO_DBG="1")
    assert json.loads(first)["packages"]["torch"]


@pytest.mark.parametrize(
    "name",
    [
        "CUBLAS_WORKSPACE_CONFIG",
        "TORCH_CUDNN_SDPA_DEPRIORITIZED",
        "NVIDIA_TF32_OVERRIDE",
        "ATEN_CPU_CAPABILITY",
        "MKL_CBWR",
        "ONEDNN_MAX_CPU_ISA",
        "CUDA_VISIBLE_DEVICES",
    ],
)
def test_a_variable_that_changes_bits_changes_it(name: str) -> None:
    assert fresh() != fresh(**{name: "x"})


def test_a_library_version_changes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = json.loads(signature.signature())
    info = tmp_path / "nvidia_cublas-99.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: nvidia-cublas\nVersion: 99.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    after = json.loads(signature.signature())
    assert after["packages"] == {**before["packages"], "nvidia-cublas": "99.0"}


def test_an_error_becomes_text(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> list[nvml.Gpu]:
        raise RuntimeError("driver gone")

    monkeypatch.setattr(nvml, "gpus", broken)
    assert json.loads(signature.signature())["gpus"] == "error: RuntimeError: driver gone"


def test_only_variables_that_change_bits_count() -> None:
    talk = {"CUBLAS_LOGINFO_DBG": "1", "CUBLASLT_LOG_LEVEL": "5", "ONEDNN_VERBOSE": "1", "HOME": "/", "OMP_NUM_THREADS": "1"}
    assert bit_changing({**talk, "CUBLASLT_DISABLE_TENSOR_CORES": "1"}) == {"CUBLASLT_DISABLE_TENSOR_CORES": "1"}
