"""Which folder a bench works on, and the sentences where it is none."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from exactgraph.bench.locate import locate
from exactgraph.bench.run import run
from exactgraph.bench.settings import Settings
from exactgraph.refusal import UserError

SPEC = "random:tiny-llama?seed=0"


def test_a_folder_the_folder_around_it_and_its_source_are_one_model(artifacts: Path, model_dir: Path) -> None:
    found = [locate(str(model_dir)), locate(str(model_dir.parent)), locate(SPEC, artifacts)]
    assert len({(located.name, located.folder) for located in found}) == 1
    assert found[0].name == model_dir.parent.name
    assert all(located.manifest is not None and not located.has_text for located in found)


def test_a_source_is_found_without_the_note_of_what_it_was_resolved_to(artifacts: Path, tmp_path: Path) -> None:
    shutil.copytree(artifacts, tmp_path / "artifacts", ignore=shutil.ignore_patterns("sources"))
    assert locate(SPEC, tmp_path / "artifacts").folder.is_relative_to(tmp_path)


def test_a_folder_without_a_manifest_has_the_same_weights(model_dir: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(model_dir, bare)
    located = locate(str(bare))
    located.check()
    assert located.manifest is None
    assert located.describe()["weights_digest"] == locate(str(model_dir)).describe()["weights_digest"]


def test_a_model_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="There is no model folder nowhere"):
        locate("nowhere")
    with pytest.raises(UserError, match=r"was not downloaded to .* snakemake --cores 1 confirm.* exactgraph download"):
        locate(SPEC, tmp_path)
    with pytest.raises(UserError, match="Unknown model source"):
        locate("ftp:somebody/model")
    with pytest.raises(UserError, match=r"holds no config\.json"):
        locate(str(tmp_path))


def test_a_changed_or_incomplete_folder_is_a_sentence(model_dir: Path, tmp_path: Path) -> None:
    shutil.copytree(model_dir.parent, tmp_path / "changed")
    (tmp_path / "changed" / "model" / "prompts.json").write_text("{}")
    with pytest.raises(UserError, match="is not the one that was downloaded"):
        locate(str(tmp_path / "changed")).check()
    bare = tmp_path / "bare"
    shutil.copytree(model_dir, bare)
    (bare / "prompts.json").unlink()
    with pytest.raises(UserError, match=r"neither a tokenizer nor a prompts\.json"):
        locate(str(bare)).check()
    for weights in bare.glob("*.safetensors"):
        weights.unlink()
    with pytest.raises(UserError, match="no safetensors weights"):
        locate(str(bare)).check()


@pytest.mark.parametrize(
    ("candidates", "settings", "said"),
    [
        ("step,C999", Settings(), "There is no candidate 'C999'"),
        (" , ", Settings(), "Name at least one candidate"),
        ("step", Settings(prompt_set="train"), "There is no prompt set 'train'"),
        ("step", Settings(new_tokens=1), "--new-tokens is 1; it must be at least 2"),
        ("step", Settings(repetitions=0), "--repetitions is 0"),
        ("step", Settings(attention="fast"), "There is no attention backend 'fast'"),
        ("step", Settings(dtype="int4"), "The precision 'int4' is not known"),
        ("step", Settings(new_tokens=4000), "Lower --new-tokens"),
    ],
)
@pytest.mark.usefixtures("on_cpu")
def test_what_makes_no_sense_is_a_sentence(model_dir: Path, candidates: str, settings: Settings, said: str) -> None:
    with pytest.raises(UserError, match=said):
        run(str(model_dir), candidates, settings)


@pytest.mark.usefixtures("on_cpu")
def test_a_model_that_cannot_be_loaded_or_run_is_a_sentence(model_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"model\.generate failed under attention cudnn: .* Try another --attention\."):
        run(str(model_dir), "step", Settings(attention="cudnn"))
    odd = tmp_path / "odd"
    shutil.copytree(model_dir, odd)
    (odd / "config.json").write_text('{"model_type": "unheard-of"}')
    with pytest.raises(UserError, match=r"cannot be loaded: .*unheard-of"):
        run(str(odd), "step", Settings())
