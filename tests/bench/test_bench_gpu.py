"""A bench on a GPU, in a process of its own: the GPU is chosen and locked before CUDA starts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.gpu
def test_every_figure_is_there(model_dir: Path) -> None:
    arguments = ["bench", str(model_dir), "--candidates", "C022,step,wrong-ulp", "--attention", "flash", "--new-tokens", "16"]
    done = subprocess.run(
        [sys.executable, "-m", "exactgraph", *arguments, "--json"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr  # wrong-ulp
    result = json.loads(done.stdout)
    assert (result["emulated"], result["protocol"]["dtype"] in ("bf16", "fp16")) == (False, True)
    assert result["gpu_uuid"]
    assert result["floor"]["copy_bytes_s"] > 1e9
    eager = result["eager"]
    assert min(eager[field] for field in ("tok_s", "first_token_ms", "gb_s", "share_of_floor", "peak_mib")) > 0
    *exact, wrong = result["rows"]
    for row in exact:
        assert (row["grade"], row["matches"], row["of"]) == ("bit-identical", 18, 18), row
        low, high = row["interval"]
        assert low <= row["ratio"] <= high
        figures = ("eager_tok_s", "tok_s", "gb_s", "share_of_floor", "capture_s", "graphs", "graph_mib", "peak_mib")
        assert min(row[field] for field in figures) > 0
        assert min(row["first_token_ms"].values()) > 0
    assert (wrong["status"], wrong["difference"]["kind"] in ("token", "logits"), wrong["tok_s"]) == ("rejected", True, None)
