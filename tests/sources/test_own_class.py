"""A class of the user's own, named in the configuration: found, digested, loaded, and noticed when it changes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from exactgraph.refusal import UserError
from exactgraph.sources import own_class
from exactgraph.sources.manifest import describe
from exactgraph.sources.resolve import resolve
from exactgraph.sources.spec import PathSource, class_of, of_class, parse, slug
from exactgraph.workflow.config import models, source_signature

MODULE = """
from transformers import WhisperForConditionalGeneration
class Own(WhisperForConditionalGeneration):
    pass
class Other:
    pass
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that a run is started in, with a module and a package."""
    (tmp_path / "own_events.py").write_text(MODULE)
    package = tmp_path / "own_package"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('only to be read')\n")
    (package / "model.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    yield tmp_path
    sys.path[:] = before
    sys.modules.pop("own_events", None)


def test_the_class_is_a_part_of_the_spec_and_of_its_name_in_paths() -> None:
    spec = of_class("path:/models/events", "events.model:EventModel")
    assert spec == "path:/models/events?class=events.model:EventModel"
    assert parse(spec) == PathSource(Path("/models/events"), own="events.model:EventModel")
    assert class_of(spec) == "events.model:EventModel"
    assert class_of("path:/models/events") is None
    names = [slug(one) for one in (spec, "path:/models/events", of_class("path:/models/events", "other:EventModel"))]
    assert len({*names}) == 3
    assert class_of(of_class("hub:owner/name@main", "events:Model")) == "events:Model"


@pytest.mark.parametrize("own", ["events", "events:", ":Model", "events:Model()", "events/model:Model", "a b:C"])
def test_what_names_no_class_is_refused(own: str) -> None:
    with pytest.raises(UserError, match="module:Class"):
        of_class("path:/models/events", own)


def test_only_folders_and_the_hub_have_models_of_other_classes() -> None:
    with pytest.raises(UserError, match="leave class out"):
        of_class("random:minicpm5-1b?seed=0", "events:Model")


def test_the_configuration_names_it() -> None:
    entry = {"source": "path:/models/events", "task": "transcribe", "class": "events:Model"}
    assert models({"models": [entry]}) == ["path:/models/events?class=events:Model"]
    with pytest.raises(UserError, match="leave remote_code out"):
        models({"models": [entry | {"remote_code": True}]})


def test_its_code_is_the_module_or_the_whole_package_and_is_not_run(here: Path) -> None:
    assert [*own_class.code_of("own_events:Own")] == ["own_events.py"]
    assert [*own_class.code_of("own_package.model:Own")] == ["own_package/__init__.py", "own_package/model.py"]


def test_a_folder_of_modules_and_what_is_no_module(here: Path) -> None:
    (here / "own_folder").mkdir()
    (here / "own_folder" / "model.py").write_text(MODULE)
    assert [*own_class.code_of("own_folder.model:Own")] == ["own_folder/model.py"]
    (here / "__main__.py").write_text(MODULE)
    with pytest.raises(UserError, match="finds no module"):
        own_class.code_of("__main__:Own")


def test_the_manifest_has_the_class_and_its_code(here: Path) -> None:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "vocab_size": 64}
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 3}
    WhisperForConditionalGeneration(WhisperConfig(**sizes, **heads, **special)).save_pretrained(here / "weights")
    source = f"path:{here / 'weights'}?class=own_events:Own"
    resolved = resolve(source)
    manifest = describe(here / "weights", resolved, "windows", None)
    assert (manifest["architecture"], manifest["code"]) == ("Own", own_class.code_of("own_events:Own"))
    (here / "own_events.py").write_text(MODULE + "\n")
    assert resolve(source)["commit"] != resolved["commit"]


def test_changed_code_is_noticed(here: Path) -> None:
    code, seen = own_class.code_of("own_events:Own"), source_signature(f"path:{here}/none?class=own_events:Own")
    own_class.check("own_events:Own", code)
    (here / "own_events.py").write_text(MODULE + "\n")
    with pytest.raises(UserError, match=r"own_events.py, code of own_events:Own, changed .* run again"):
        own_class.check("own_events:Own", code)
    assert source_signature(f"path:{here}/none?class=own_events:Own") != seen


def test_it_is_loaded_from_the_folder_of_the_run(here: Path) -> None:
    assert own_class.load("own_events:Own").__mro__[1].__name__ == "WhisperForConditionalGeneration"


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ("own_nowhere:Model", "Python finds no module 'own_nowhere'"),
        ("own_events:Nothing", "cannot be imported"),
        ("own_events:Other", "has to be a PreTrainedModel and a GenerationMixin"),
    ],
)
def test_a_class_that_cannot_be_is_refused(here: Path, own: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        _used(own)


def _used(own: str) -> None:
    own_class.code_of(own)
    own_class.load(own)
