"""A model of a user's own, as somebody would write it beside the Snakefile: raw audio in, event tokens out."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import GenerationMixin, PreTrainedModel, WhisperConfig, WhisperModel
from transformers.modeling_outputs import Seq2SeqLMOutput

from exactgraph.models.cache import cache_name, cache_of

FRAMES, BINS = 40, 16


class EventConfig(WhisperConfig):
    model_type = "own-events"


class AudioEncoder:
    """Samples ``(batch, samples)`` to the hidden states of a Whisper's encoder, over the loudness of short pieces."""

    main_input_name = "audio"

    def __init__(self, encoder: nn.Module) -> None:
        self._encoder = encoder

    def __call__(self, audio: torch.Tensor, **kwargs: Any) -> Any:
        return self.forward(audio)

    def forward(self, audio: torch.Tensor, **kwargs: Any) -> Any:
        pieces = audio.reshape(audio.shape[0], BINS, FRAMES, -1)
        return self._encoder(pieces.abs().mean(-1) * 20)


class EventModel(PreTrainedModel, GenerationMixin):
    """A Whisper inside, a head with a name of its own."""

    config_class = EventConfig
    main_input_name = "audio"
    _supports_sdpa = True

    def __init__(self, config: EventConfig) -> None:
        super().__init__(config)
        self.backbone = WhisperModel(config)
        self.events = nn.Linear(config.d_model, config.vocab_size, bias=False)
        self.post_init()

    def get_encoder(self, *args: Any, **kwargs: Any) -> Any:
        return AudioEncoder(self.backbone.encoder)

    def forward(
        self,
        audio: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        encoder_outputs: Any = None,
        cache: Any = None,
        past_key_values: Any = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        if encoder_outputs is None:
            encoder_outputs = self.get_encoder()(audio)
        kwargs.pop("return_dict", None)
        # Versions of transformers differ in what they call the cache.
        name = cache_name(self.backbone)
        kwargs[name] = past_key_values if cache is None else cache
        output = self.backbone(
            decoder_input_ids=decoder_input_ids, encoder_outputs=encoder_outputs, use_cache=use_cache, **kwargs
        )
        return Seq2SeqLMOutput(logits=self.events(output.last_hidden_state), **{name: cache_of(output)})


def make() -> EventModel:
    """A small one with seeded weights."""
    torch.manual_seed(0)
    sizes = {"d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "vocab_size": 300}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 96, "decoder_ffn_dim": 96}
    reach = {"num_mel_bins": BINS, "max_source_positions": FRAMES // 2, "max_target_positions": 448}
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 3}
    config = EventConfig(**sizes, **heads, **reach, **special, init_std=0.6, suppress_tokens=None, begin_suppress_tokens=None)
    return EventModel(config).eval()
