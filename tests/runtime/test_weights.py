"""Whether the weights in memory are a receipt's, where one matrix has several names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from encdec_models import make
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from exactgraph.runtime.weights import Weights
from exactgraph.sources.manifest import describe, weights_digests_of_state

CPU = torch.device("cpu")
NOWHERE = Path("nowhere")  # as under a bundle, which has no weights
HEADS = {"whisper": "proj_out", "t5": "lm_head", "bart": "lm_head", "llama": "lm_head"}


def tied(family: str) -> Any:
    if family != "llama":
        return make(family, CPU, tie_word_embeddings=True)
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 99}
    return LlamaForCausalLM(LlamaConfig(**sizes, tie_word_embeddings=True))


def stored(model: Any, folder: Path) -> dict[str, Any]:
    """The manifest of ``model`` in ``folder``."""
    model.save_pretrained(folder)
    return described(folder)


def described(folder: Path) -> dict[str, Any]:
    return describe(folder, {"source": "path:mine", "model": "mine", "commit": "0" * 12, "facts": {}}, "token-ids", None)


@pytest.mark.parametrize("family", HEADS)
def test_a_tied_head_needs_no_stored_copy(family: str, tmp_path: Path) -> None:
    model = tied(family)
    manifest = stored(model, tmp_path)
    assert f"{HEADS[family]}.weight" not in load_file(tmp_path / "model.safetensors")
    assert Weights(model).differ(manifest, NOWHERE) is None
    loaded = type(model).from_pretrained(tmp_path)
    assert loaded.get_input_embeddings().weight is loaded.get_output_embeddings().weight
    assert Weights(loaded).differ(manifest, NOWHERE) is None


@pytest.mark.parametrize("family", HEADS)
def test_a_tied_head_that_was_stored_twice_needs_none_either(family: str, tmp_path: Path) -> None:
    model = tied(family)
    stored(model, tmp_path)
    save_file({name: tensor.clone() for name, tensor in model.state_dict().items()}, tmp_path / "model.safetensors")
    assert Weights(model).differ(described(tmp_path), NOWHERE) is None


@pytest.mark.parametrize("family", HEADS)
def test_a_head_of_its_own_is_another_model(family: str, tmp_path: Path) -> None:
    model = tied(family)
    manifest = stored(model, tmp_path)
    head = model.get_output_embeddings()
    head.weight = torch.nn.Parameter(head.weight.detach().clone())
    with torch.no_grad():
        head.weight[0, 0] += 1
    for folder in (NOWHERE, tmp_path):
        refusal = Weights(model).differ(manifest, folder)
        assert refusal is not None
        assert refusal.reason == "other-weights"


def test_a_head_that_is_a_copy_is_compared_with_the_stored_model(tmp_path: Path) -> None:
    model = tied("whisper")
    manifest = stored(model, tmp_path)
    model.proj_out.weight = torch.nn.Parameter(model.proj_out.weight.detach().clone())
    assert Weights(model).differ(manifest, tmp_path) is None


def test_a_view_of_a_matrix_is_another_tensor() -> None:
    matrix = torch.arange(16.0).reshape(4, 4)
    views = {"a": matrix, "b": matrix.T, "c": matrix[:2], "d": matrix.view(torch.int32)}
    whole = {name: view.contiguous().clone() for name, view in views.items()}
    assert weights_digests_of_state(views) == weights_digests_of_state(whole)
    assert len(weights_digests_of_state(views)) == 1
