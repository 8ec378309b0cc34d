"""From a Whisper in CTranslate2's format to a Hugging Face model folder."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from exactgraph.canonical import read_json, write_json
from exactgraph.refusal import UserError
from exactgraph.sources.ctranslate2 import Stored, read
from exactgraph.sources.whisper_weights import layers, weights

# What the package says of its content: "MIT - Model weights are from Systran/faster-whisper-tiny.en".
_LICENSE = "mit"
_ALIASES = {"decoder/projection/weight": "decoder/embeddings/weight"}
_REVISION = 3
_END, _START, _NO_TIMESTAMPS = "<|endoftext|>", "<|startoftranscript|>", "<|notimestamps|>"
_TOKENIZER = {
    "tokenizer_class": "WhisperTokenizer",
    "processor_class": "WhisperProcessor",
    "add_prefix_space": False,
    "model_max_length": 1024,
    **dict.fromkeys(("bos_token", "eos_token", "pad_token", "unk_token"), _END),
}
_ENGLISH = 51864  # tokens of an English vocabulary
# How every Whisper was trained to hear: 16 kHz, windows of 30 s, a spectrum every 10 ms.
_RATE, _SECONDS, _HOP, _FFT = 16000, 30, 160, 400


def convert(file: Path, folder: Path) -> str:
    """Write configuration, weights and tokenizer into ``folder``; ``file`` has its package's other files beside it.

    Returns the licence that the package states.
    """
    stored = read(file)
    if (stored.spec, stored.revision) != ("WhisperSpec", _REVISION):
        raise UserError(
            f"{file.name} is a {stored.spec} of revision {stored.revision}; only WhisperSpec {_REVISION} is converted."
        )
    if stored.aliases != _ALIASES:
        raise UserError(f"{file.name} ties other matrices than head and embedding ({stored.aliases}): it is no Whisper.")
    tensors = weights(stored)
    tokens = {token["content"]: int(token["id"]) for token in read_json(file.parent / "tokenizer.json")["added_tokens"]}
    config = _config(stored, tensors, tokens)
    _check(config, tensors)
    write_json(folder / "config.json", config)
    write_json(folder / "generation_config.json", _generation(read_json(file.parent / "config.json"), config, tokens))
    write_json(folder / "preprocessor_config.json", _preprocessor(config))
    write_json(folder / "tokenizer_config.json", _TOKENIZER)
    shutil.copyfile(file.parent / "tokenizer.json", folder / "tokenizer.json")
    (folder / "model.safetensors").write_bytes(save(tensors, metadata={"format": "pt"}))
    return _LICENSE


def _config(stored: Stored, tensors: dict[str, torch.Tensor], tokens: dict[str, int]) -> dict[str, Any]:
    """The content of ``config.json``: sizes from the weights' shapes, ids of special tokens from the tokenizer."""
    vocabulary, width = tensors["model.decoder.embed_tokens.weight"].shape
    dtypes = {str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values()}
    if len(dtypes) > 1:
        raise UserError(f"The model stores its weights in several dtypes ({', '.join(sorted(dtypes))}): it is not converted.")
    sides: dict[str, int] = {}
    for side, layer in (("encoder", "encoder.layers.0"), ("decoder", "decoder.layers.0")):
        sides[f"{side}_layers"] = layers(stored, side)
        sides[f"{side}_attention_heads"] = int(stored.variables[f"{side}/num_heads"])
        sides[f"{side}_ffn_dim"] = tensors[f"model.{layer}.fc1.weight"].shape[0]
    return {
        "architectures": ["WhisperForConditionalGeneration"],
        "model_type": "whisper",
        "is_encoder_decoder": True,
        "d_model": width,
        "vocab_size": vocabulary,
        "num_mel_bins": tensors["model.encoder.conv1.weight"].shape[1],
        "max_source_positions": tensors["model.encoder.embed_positions.weight"].shape[0],
        "max_target_positions": tensors["model.decoder.embed_positions.weight"].shape[0],
        **sides,
        "activation_function": "gelu",
        "scale_embedding": False,
        "tie_word_embeddings": True,
        "decoder_start_token_id": tokens[_START],
        **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), tokens[_END]),
        "dtype": dtypes.pop(),
    }


def _generation(theirs: dict[str, Any], config: dict[str, Any], tokens: dict[str, int]) -> dict[str, Any]:
    """The content of ``generation_config.json``; ``theirs`` is CTranslate2's ``config.json``."""
    special = ("decoder_start_token_id", "bos_token_id", "eos_token_id", "pad_token_id")
    return {
        **{name: config[name] for name in special},
        # An English model has one token less: there is one language, and no task to name.
        "is_multilingual": False,
        "no_timestamps_token_id": tokens[_NO_TIMESTAMPS],
        "return_timestamps": False,
        "max_length": config["max_target_positions"],
        "suppress_tokens": theirs["suppress_ids"],
        "begin_suppress_tokens": theirs["suppress_ids_begin"],
        "alignment_heads": theirs["alignment_heads"],
        "do_sample": False,
    }


def _preprocessor(config: dict[str, Any]) -> dict[str, Any]:
    """The content of ``preprocessor_config.json``: how a waveform becomes a log-mel spectrum."""
    return {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "processor_class": "WhisperProcessor",
        "feature_size": config["num_mel_bins"],
        "sampling_rate": _RATE,
        "chunk_length": _SECONDS,
        "hop_length": _HOP,
        "n_fft": _FFT,
        "padding_side": "right",
        "padding_value": 0.0,
        "return_attention_mask": False,
    }


def _check(config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    """Raise ``UserError`` where the model that transformers makes of ``config`` asks for other names or shapes."""
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    if config["vocab_size"] != _ENGLISH:
        raise UserError(f"The model has {config['vocab_size']} tokens; only English Whispers, with {_ENGLISH}, are converted.")
    with torch.device("meta"):
        model = WhisperForConditionalGeneration(WhisperConfig.from_dict(config))
    asked = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    del asked["proj_out.weight"]  # tied to the embedding
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    wrong = sorted(name for name in asked.keys() | found.keys() if asked.get(name) != found.get(name))
    if wrong:
        name = wrong[0]
        raise UserError(f"The weights do not fit a Whisper: {name} is {found.get(name)} where {asked.get(name)} is asked for.")
