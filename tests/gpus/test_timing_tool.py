"""The file that tools/two_gpus.py writes. Its timing needs two GPUs and a confirmed result."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from exactgraph.canonical import read_json, write_json
from exactgraph.protocol.timing import Repetitions
from exactgraph.refusal import UserError
from exactgraph.stages.place import Place

sys.path.append(str(Path(__file__).resolve().parents[2] / "tools"))

import two_gpus

ENVIRONMENT = {"device": {"id": "nvidia-h200"}, "environment": {"key": "0" * 16}, "precision": "bf16"}


@pytest.fixture
def gpus() -> None:
    """These need none."""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    folder = tmp_path / "m@0123456789ab" / "nvidia-h200" / ("0" * 16) / ("1" * 16)
    write_json(folder.parent / "environment.json", ENVIRONMENT)
    write_json(folder.parents[2] / "model.json", {"model": "m"})
    return Place(folder)


def row(name: str, ratio: float) -> dict[str, Any]:
    return {"id": name, "ratio": ratio}


def test_rows_of_several_keys_lie_beside_each_other(tmp_path: Path, place: Place) -> None:
    out = tmp_path / "two-gpus.json"
    two_gpus.add(out, place, [row("m/step/quiet", 7.0), row("m/step/products", 6.9)])
    two_gpus.add(out, place, [row("n/C025/quiet", 1.8)])
    two_gpus.add(out, place, [row("m/step/quiet", 7.1)])
    found = read_json(out)
    assert (found["device"], found["environment"]) == ("nvidia-h200", "0" * 16)
    assert found["rows"] == [row("m/step/products", 6.9), row("n/C025/quiet", 1.8), row("m/step/quiet", 7.1)]


@pytest.mark.parametrize("change", [{"code": "f" * 16}, {"environment": "f" * 16}, {"device": "nvidia-a100"}])
def test_rows_of_another_place_or_code_are_not_mixed(tmp_path: Path, place: Place, change: dict[str, str]) -> None:
    out = tmp_path / "two-gpus.json"
    two_gpus.add(out, place, [row("m/step/quiet", 7.0)])
    write_json(out, {**read_json(out), **change})
    with pytest.raises(UserError, match="name a new file"):
        two_gpus.add(out, place, [row("m/C025/quiet", 1.8)])


def test_a_figure_of_a_wrong_answer_is_none(place: Place) -> None:
    import torch

    timing = {"eager_tok_s": 40.0, "candidate_tok_s": 400.0, "ratio": 7.0, "interval": [6.0, 8.0]}
    found = {"quiet": timing, "products": {**timing, "candidate_tok_s": 300.0}}
    compared = Repetitions([], torch.device("cpu"))
    assert two_gpus.row(place, "step", "products", compared, found, ["heat"])["moved"] == 0.75
    compared.difference = {"prompt": "heldout/0", "step": 1, "expected": 1, "got": 2, "margin": 0.5, "kind": "token"}
    with pytest.raises(UserError, match="step left the baseline beside a GPU that was products"):
        two_gpus.row(place, "step", "products", compared, found, [])
