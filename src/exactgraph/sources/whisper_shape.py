"""The shape of a Whisper that random weights can be made for. Free of torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class WhisperShape:
    """The dimensions of a ``WhisperForConditionalGeneration`` with a head of its own, encoder and decoder alike.

    All sizes are element counts; ``max_source`` counts encoder positions, two frames of ``mel_bins`` each, ``max_target``
    decoder positions.
    """

    hidden: int
    intermediate: int
    layers: int
    heads: int
    vocab: int
    mel_bins: int
    max_source: int
    max_target: int
    start: int
    end: int

    def config(self) -> dict[str, Any]:
        """The content of ``config.json``."""
        sides: dict[str, int] = {}
        for side in ("encoder", "decoder"):
            sides |= {f"{side}_layers": self.layers, f"{side}_attention_heads": self.heads}
            sides |= {f"{side}_ffn_dim": self.intermediate}
        return {
            "architectures": ["WhisperForConditionalGeneration"],
            "model_type": "whisper",
            "is_encoder_decoder": True,
            "d_model": self.hidden,
            "vocab_size": self.vocab,
            "num_mel_bins": self.mel_bins,
            "max_source_positions": self.max_source,
            "max_target_positions": self.max_target,
            **sides,
            "activation_function": "gelu",
            "scale_embedding": False,
            # Seeded weights of a tied head would make the token that was fed the likeliest one.
            "tie_word_embeddings": False,
            "decoder_start_token_id": self.start,
            **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), self.end),
            "dtype": "bfloat16",
        }

    def generation_config(self) -> dict[str, Any]:
        """The content of ``generation_config.json``: no languages, tasks or timestamps."""
        return {
            "decoder_start_token_id": self.start,
            **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), self.end),
            "is_multilingual": False,
            "return_timestamps": False,
            "max_length": self.max_target,
            "begin_suppress_tokens": [self.end],
            "do_sample": False,
        }

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every stored tensor, in the order in which they are written."""
        hidden = (self.hidden,)
        tensors: dict[str, tuple[int, ...]] = {
            "model.encoder.conv1.weight": (self.hidden, self.mel_bins, 3),
            "model.encoder.conv1.bias": hidden,
            "model.encoder.conv2.weight": (self.hidden, self.hidden, 3),
            "model.encoder.conv2.bias": hidden,
            "model.encoder.embed_positions.weight": (self.max_source, self.hidden),
            "model.decoder.embed_tokens.weight": (self.vocab, self.hidden),
            "model.decoder.embed_positions.weight": (self.max_target, self.hidden),
        }
        for side, attentions in (("encoder", ("self_attn",)), ("decoder", ("self_attn", "encoder_attn"))):
            for layer in range(self.layers):
                prefix = f"model.{side}.layers.{layer}."
                for attention in attentions:
                    tensors |= self._attention(prefix + attention)
                tensors |= {
                    prefix + "fc1.weight": (self.intermediate, self.hidden),
                    prefix + "fc1.bias": (self.intermediate,),
                    prefix + "fc2.weight": (self.hidden, self.intermediate),
                    prefix + "fc2.bias": hidden,
                    prefix + "final_layer_norm.weight": hidden,
                    prefix + "final_layer_norm.bias": hidden,
                }
            tensors |= {f"model.{side}.layer_norm.weight": hidden, f"model.{side}.layer_norm.bias": hidden}
        return tensors | {"proj_out.weight": (self.vocab, self.hidden)}

    def _attention(self, name: str) -> dict[str, tuple[int, ...]]:
        square, row = (self.hidden, self.hidden), (self.hidden,)
        tensors: dict[str, tuple[int, ...]] = {}
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            tensors[f"{name}.{part}.weight"] = square
            if part != "k_proj":  # which has none in Whisper
                tensors[f"{name}.{part}.bias"] = row
        return tensors | {f"{name}_layer_norm.weight": row, f"{name}_layer_norm.bias": row}
