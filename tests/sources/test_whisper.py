"""A Whisper in CTranslate2's format: read to the last byte, every tensor in its place, anything else refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_ctranslate2
import torch
from tiny_ctranslate2 import HIDDEN, Array
from transformers import WhisperForConditionalGeneration

from exactgraph.canonical import read_json
from exactgraph.refusal import UserError
from exactgraph.sources import ctranslate2, whisper


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "package"
    folder.mkdir()
    return folder / "model.bin"


def convert(package: Path, variables: dict[str, Array]) -> Path:
    tiny_ctranslate2.write(package, variables)
    folder = package.parent.parent / "model"
    folder.mkdir()
    assert whisper.convert(package, folder) == "mit"
    return folder


def test_every_tensor_has_its_place_and_its_bits(package: Path) -> None:
    variables = tiny_ctranslate2.variables()
    folder = convert(package, variables)
    loaded: Any = WhisperForConditionalGeneration.from_pretrained(folder, dtype="auto", output_loading_info=True)
    model, report = loaded
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    state = model.state_dict()
    assert {tensor.dtype for tensor in state.values()} == {torch.float16}
    fused = variables["decoder/layer_1/self_attention/linear_0/weight"]
    for index, part in enumerate(("q_proj", "k_proj", "v_proj")):
        got = state[f"model.decoder.layers.1.self_attn.{part}.weight"].numpy()
        assert np.array_equal(got, fused[index * HIDDEN : (index + 1) * HIDDEN]), part
    crossed = variables["decoder/layer_0/attention/linear_1/weight"]
    assert np.array_equal(state["model.decoder.layers.0.encoder_attn.v_proj.weight"].numpy(), crossed[HIDDEN:])
    bias = variables["decoder/layer_0/attention/linear_1/bias"]
    assert np.array_equal(state["model.decoder.layers.0.encoder_attn.v_proj.bias"].numpy(), bias[HIDDEN:])
    # Nothing was lost but the zeros for biases that K does not have: one in each encoder layer, two in each of the decoder.
    stored = sum(values.size for values in variables.values() if values.dtype == np.float16)
    assert sum(tensor.numel() for name, tensor in state.items() if name != "proj_out.weight") == stored - 6 * HIDDEN
    assert model.proj_out.weight is model.model.decoder.embed_tokens.weight


def test_configuration_follows_from_the_shapes(package: Path) -> None:
    folder = convert(package, tiny_ctranslate2.variables())
    config, generation = read_json(folder / "config.json"), read_json(folder / "generation_config.json")
    assert (config["d_model"], config["encoder_layers"], config["decoder_attention_heads"]) == (8, 2, 2)
    assert (config["num_mel_bins"], config["max_source_positions"], config["max_target_positions"]) == (4, 6, 16)
    assert (config["decoder_start_token_id"], config["eos_token_id"], config["dtype"]) == (50257, 50256, "float16")
    assert (generation["no_timestamps_token_id"], generation["suppress_tokens"]) == (50362, [1, 2])
    assert read_json(folder / "preprocessor_config.json")["feature_size"] == 4


def _bias(found: dict[str, Array]) -> None:
    found["encoder/layer_0/self_attention/linear_0/bias"][HIDDEN] = 0.5


def _extra(found: dict[str, Array]) -> None:
    found["decoder/layer_1/extra"] = np.zeros(2, np.float16)


def _lacking(found: dict[str, Array]) -> None:
    del found["decoder/layer_1/ffn/linear_1/bias"]


def _quantised(found: dict[str, Array]) -> None:
    found["encoder/layer_0/ffn/linear_0/weight"] = np.zeros((4 * HIDDEN, HIDDEN), np.int8)


def _activation(found: dict[str, Array]) -> None:
    found["decoder/activation"] = np.asarray(np.int8(0))


def _shape(found: dict[str, Array]) -> None:
    found["encoder/layer_0/ffn/linear_1/weight"] = np.zeros((HIDDEN, HIDDEN), np.float16)


def _vocabulary(found: dict[str, Array]) -> None:
    found["decoder/embeddings/weight"] = np.zeros((100, HIDDEN), np.float16)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (_bias, r"model.encoder.layers.0.self_attn.k_proj has a bias that is not zero"),
        (_extra, r"1 variables that have no place in a Whisper, such as decoder/layer_1/extra"),
        (_lacking, r"lacks the variable decoder/layer_1/ffn/linear_1/bias"),
        (_quantised, r"weights as int8: quantised weights are not converted"),
        (_activation, r"has decoder/activation 0; a Whisper has 3"),
        (_shape, r"model.encoder.layers.0.fc2.weight is \(8, 8\) where \(8, 32\) is asked for"),
        (_vocabulary, r"has 100 tokens; only English Whispers, with 51864, are converted"),
    ],
)
def test_what_is_no_whisper_is_refused(package: Path, change: Any, sentence: str) -> None:
    variables = tiny_ctranslate2.variables()
    change(variables)
    with pytest.raises(UserError, match=sentence):
        convert(package, variables)


def test_another_model_and_another_version_are_refused(package: Path) -> None:
    tiny_ctranslate2.write(package, {}, spec="TransformerSpec")
    with pytest.raises(UserError, match="is a TransformerSpec of revision 3; only WhisperSpec 3 is converted"):
        whisper.convert(package, package.parent)
    tiny_ctranslate2.write(package, {}, version=5)
    with pytest.raises(UserError, match="has the CTranslate2 binary version 5; only version 6 is read"):
        ctranslate2.read(package)


def test_a_file_that_ends_early_or_late_is_refused(package: Path) -> None:
    tiny_ctranslate2.write(package, {"a": np.arange(6, dtype=np.float32).reshape(2, 3)})
    whole = package.read_bytes()
    assert np.array_equal(ctranslate2.read(package).variables["a"], [[0, 1, 2], [3, 4, 5]])
    for length in range(len(whole)):
        package.write_bytes(whole[:length])
        with pytest.raises(UserError, match="ends in the middle of a value"):
            ctranslate2.read(package)
    package.write_bytes(whole + b"\0")
    with pytest.raises(UserError, match="1 bytes after its end"):
        ctranslate2.read(package)
