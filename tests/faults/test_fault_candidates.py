"""Candidates that run out of memory: their failure is a result, and the rest of the ladder goes on to a receipt."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_fault_kills import clone, only, snakemake

from exactgraph.canonical import read_json, write_json

FULL = """

def _full(*_: object) -> None:
    import torch

    raise torch.OutOfMemoryError("CUDA out of memory.")


for _candidate in CANDIDATES.values():
    type(_candidate).{method} = _full
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_rest_of_the_ladder_goes_on(tmp_path: Path) -> None:
    folder = clone(tmp_path)
    config = read_json(folder / "config.yaml")
    write_json(folder / "config.yaml", config | {"candidates": ["C022", "static", "step"]})
    for module, method in (("step", "plan"), ("compiled", "install")):
        with (folder / "src" / "exactgraph" / "candidates" / f"{module}.py").open("a") as file:
            file.write(FULL.format(method=method))
    done = snakemake(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    predicate = read_json(only(folder, "receipt.json"))["predicate"]
    verdicts = {name: candidate["verdict"] for name, candidate in predicate["candidates"].items()}
    assert verdicts == {
        "C022": "confirmed",
        "static": "failed",
        "step": "failed",
        "null": "exact",
        "wrong-ulp": "rejected",
        "wrong-late": "caught",
    }
    for name in ("static", "step"):
        assert predicate["candidates"][name]["why"] == "OutOfMemoryError: CUDA out of memory."
    assert predicate["status"] == "rehearsal"
