"""Small random encoder-decoders, their inputs, and a model of a user's own around one of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    GenerationMixin,
    MarianConfig,
    MarianMTModel,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
    WhisperConfig,
    WhisperForConditionalGeneration,
)
from transformers.modeling_outputs import Seq2SeqLMOutput

from exactgraph.models.cache import cache_name, cache_of

VOCABULARY = 400
FRAMES = 40
_SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 3}
_WIDE: dict[str, Any] = {
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 96,
    "decoder_ffn_dim": 96,
    "vocab_size": VOCABULARY,
    # The width of the weights is chosen so that answers do not fall into a short cycle.
    "init_std": 0.3,
    "tie_word_embeddings": False,
    **_SPECIAL,
}
_BART = {**_WIDE, "init_std": 0.06, "max_position_embeddings": 512, "forced_eos_token_id": None, "forced_bos_token_id": None}

# T5 has no positions but the bias. Answers that hung on the last token alone would fall into a short cycle, so the tokens
# before it weigh more here, by where they are.
_T5_SCALES = {
    "relative_attention_bias": 12,
    "SelfAttention.o": 36,
    "EncDecAttention.o": 1.2,
    ".v.weight": 12,
    ".wo.weight": 12,
}


class FramesConfig(WhisperConfig):
    model_type = "frames-for-tests"


class FramesModel(PreTrainedModel, GenerationMixin):
    """Raw frames ``(batch, frames, 8)`` and a style to event tokens: a Whisper inside, a head with a name of its own.

    Written for every transformers: it takes the cache by the new name and by the old one.
    """

    config_class = FramesConfig
    main_input_name = "frames"
    _supports_sdpa = True

    def __init__(self, config: FramesConfig) -> None:
        super().__init__(config)
        from transformers import WhisperModel

        self.bins = nn.Linear(8, config.num_mel_bins)
        self.styles = nn.Embedding(4, config.d_model)
        self.backbone = WhisperModel(config)
        self.events = nn.Linear(config.d_model, config.vocab_size, bias=False)
        self._cache_name = cache_name(self.backbone)
        self.post_init()

    def get_encoder(self, *args: Any, **kwargs: Any) -> Any:
        return _FramesEncoder(self)

    def forward(
        self,
        frames: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        encoder_outputs: Any = None,
        cache: Any = None,
        past_key_values: Any = None,
        use_cache: bool | None = None,
        style: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        if encoder_outputs is None:
            encoder_outputs = self.get_encoder()(frames)
        kwargs.pop("return_dict", None)
        kwargs[self._cache_name] = past_key_values if cache is None else cache
        output = self.backbone(
            decoder_input_ids=decoder_input_ids, encoder_outputs=encoder_outputs, use_cache=use_cache, **kwargs
        )
        hidden = output.last_hidden_state
        if style is not None:
            hidden = hidden + self.styles(style)[:, None]
        return Seq2SeqLMOutput(logits=self.events(hidden), **{self._cache_name: cache_of(output)})


class _FramesEncoder:
    main_input_name = "frames"

    def __init__(self, model: FramesModel) -> None:
        self._model = model

    def forward(self, frames: torch.Tensor, **kwargs: Any) -> Any:
        return self._model.backbone.encoder(self._model.bins(frames).transpose(1, 2))

    def __call__(self, frames: torch.Tensor, **kwargs: Any) -> Any:
        return self.forward(frames)


def _whisper_sizes() -> dict[str, Any]:
    positions = {"num_mel_bins": 16, "max_source_positions": FRAMES // 2, "max_target_positions": 448}
    return {**_WIDE, **positions, "suppress_tokens": None, "begin_suppress_tokens": None}


def make(family: str, device: torch.device, **changes: Any) -> Any:
    torch.manual_seed(0)
    if family == "whisper":
        model: Any = WhisperForConditionalGeneration(WhisperConfig(**{**_whisper_sizes(), **changes}))
    elif family == "frames":
        model = FramesModel(FramesConfig(**{**_whisper_sizes(), "init_std": 0.6, **changes}))
    elif family == "t5":
        sizes = {"d_model": 64, "d_kv": 32, "d_ff": 96, "num_layers": 3, "num_heads": 2}
        shared = {"vocab_size": VOCABULARY, "tie_word_embeddings": False, "initializer_factor": 4.0, **_SPECIAL}
        model = T5ForConditionalGeneration(T5Config(**{**sizes, **shared, **changes}))
    elif family == "bart":
        model = BartForConditionalGeneration(BartConfig(**{**_BART, **changes}))
    else:
        assert family == "marian", family
        model = MarianMTModel(MarianConfig(**{**_BART, "init_std": 0.03, **changes}))
    with torch.no_grad():
        # Norms and biases begin as ones and zeros, and one that was forgotten would not show.
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
        if family == "t5":
            for name, parameter in model.named_parameters():
                parameter.mul_(next((by for part, by in _T5_SCALES.items() if part in name), 1))
    model.generation_config.eos_token_id = None
    model.generation_config.max_length = None
    # All drawn on the CPU: the weights are the same on every device, but for their precision.
    return model.to(device=device, dtype=torch.bfloat16 if device.type == "cuda" else torch.float32).eval()


FAMILIES = ("whisper", "t5", "bart", "marian", "frames")


def question(model: Any, seed: int = 0, tokens: int = 12) -> dict[str, torch.Tensor]:
    """Arguments of ``generate`` that hold one input; ``tokens`` is its length where it has one of its own."""
    generator = torch.Generator().manual_seed(seed)
    device, dtype = model.device, model.dtype
    if isinstance(model, WhisperForConditionalGeneration):
        return {"input_features": torch.randn(1, 16, FRAMES, generator=generator).to(device, dtype)}
    if isinstance(model, FramesModel):
        frames = torch.randn(1, FRAMES, 8, generator=generator).to(device, dtype)
        return {"frames": frames, "style": torch.tensor([seed % 4], device=device)}
    ids = torch.randint(4, VOCABULARY, (1, tokens), generator=generator).to(device)
    return {"input_ids": ids}
