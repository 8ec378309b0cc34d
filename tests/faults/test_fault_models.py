"""Models and GPUs that cannot do what is asked: a sentence, or a result with its reason, and never a wrong baseline."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from real_key import TINY, make
from safetensors.torch import load_file, save_file

from exactgraph.canonical import read_json
from exactgraph.protocol.questions import Question, check_context
from exactgraph.refusal import UserError
from exactgraph.sources.download import download
from exactgraph.sources.resolve import resolve
from exactgraph.stages import baseline
from exactgraph.stages.place import Place


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A local model folder to damage."""
    download(resolve(TINY), tmp_path / "mine", tmp_path / "mine.json")
    return tmp_path / "mine"


def record(place: Place) -> dict[str, Any]:
    out = place.baseline_path("default", 1)
    baseline.run(place.folder, "c" * 16, 1, "default", out)
    value: dict[str, Any] = read_json(out)
    return value


def refused(place: Place, says: str) -> None:
    with pytest.raises(UserError, match=says):
        record(place)
    assert not place.baseline_path("default", 1).exists()


def test_the_place_itself_works(tmp_path: Path) -> None:
    assert len(record(make(tmp_path))["sets"]["heldout"][0]["tokens"]) == 4


def test_a_prompt_beyond_the_context(tmp_path: Path) -> None:
    says = "Prompt confirm/0 has 5 tokens and 2050 are to be generated: more than the model's context of 2048. Lower new_"
    refused(make(tmp_path, new_tokens=2050), says)


def test_the_last_token_that_fits() -> None:
    """The last token is chosen and never fed."""
    check_context({"long": [Question("long/0", (1,) * 9, 8)]}, 16)
    with pytest.raises(UserError, match="long/0"):
        check_context({"long": [Question("long/0", (1,) * 9, 9)]}, 16)
    check_context({"long": [Question("long/0", (1,) * 9, 9)]}, None)


def test_a_prompt_without_tokens() -> None:
    with pytest.raises(UserError, match="Prompt heldout/0 has no tokens for this model"):
        check_context({"heldout": [Question("heldout/0", (), 4)]}, 16)


@pytest.mark.parametrize("error", [IndexError("out of range"), RuntimeError("no kernel"), NotImplementedError("rope")])
def test_a_generate_that_fails_is_a_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    from transformers import LlamaForCausalLM

    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(LlamaForCausalLM, "forward", fails)
    failed = record(make(tmp_path))["failed"]
    assert failed["reason"] == "generate-failed"
    assert failed["sentence"] == f"model.generate failed under default: {type(error).__name__}: {error}"


def test_a_gpu_that_is_full_is_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What else works there may end, so nothing is written down that would stay."""
    from transformers import LlamaForCausalLM

    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1 << 30, 80 << 30))
    says = "does not fit into the GPU's memory, of which 1.0 of 80.0 GiB are free: end what else works on it"
    with monkeypatch.context() as patch:
        patch.setattr(LlamaForCausalLM, "forward", full)
        refused(make(tmp_path), f"Generating with the model {says}")
    monkeypatch.setattr(LlamaForCausalLM, "to", full)
    refused(make(tmp_path), f"The model in .* {says}")


def test_a_key_of_another_gpu(tmp_path: Path) -> None:
    refused(make(tmp_path, device="nvidia-other-sm80-1sm-1g"), "This job belongs on nvidia-other-sm80-1sm-1g, but .* gives ")


def test_a_model_whose_bytes_changed_since_the_download(tmp_path: Path) -> None:
    place = make(tmp_path)
    weights = place.model_dir / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    refused(place, r"is not the one that was downloaded: .*model\.safetensors has the SHA-256 .* Delete it\.")


def test_weights_that_lack_a_parameter(tmp_path: Path, folder: Path) -> None:
    """transformers would make such a parameter up, another one in each process."""
    weights = load_file(folder / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    says = r"cannot be loaded: its weights lack 1 parameters, among them model\.norm\.weight"
    refused(make(tmp_path / "artifacts", f"path:{folder}"), says)


@pytest.mark.parametrize(
    ("changes", "says"),
    [({"model_type": "nobody"}, "nobody"), ({"hidden_size": 96}, "size mismatch|shape|mismatch")],
)
def test_a_configuration_that_is_not_the_weights(tmp_path: Path, folder: Path, changes: dict[str, Any], says: str) -> None:
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | changes))
    refused(make(tmp_path / "artifacts", f"path:{folder}"), f"The model in .* cannot be loaded: .*({says})")


def test_a_model_folder_that_went_away(tmp_path: Path) -> None:
    place = make(tmp_path)
    shutil.rmtree(place.model_dir)
    refused(place, r"is not the one that was downloaded: .* is missing")
