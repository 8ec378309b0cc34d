"""A made-up call of an encoder-decoder, so that a step can be captured before anybody asked anything."""

from __future__ import annotations

from typing import Any

import torch
from transformers import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from exactgraph.models.cache import cache_name
from exactgraph.models.encdec_inputs import prepared

_ENCODED = 16  # encoder positions, where the model does not fix their number


def sample_call(model: Any, rows: int = 1) -> tuple[torch.Tensor, dict[str, Any], Any] | None:
    """A prompt of one token, int64 ``(rows, 1)``, the other arguments, and the cache after a prefill over zeros for an
    encoder's output ``(rows, positions, hidden)``; None for a model that needs more than that, or another kind of output.
    """
    config = model.config.get_text_config(decoder=True)
    hidden = getattr(config, "hidden_size", None)
    if hidden is None:
        return None
    positions = getattr(config, "max_source_positions", None) or _ENCODED
    encoded = torch.zeros((rows, positions, hidden), dtype=model.dtype, device=model.device)
    ids = torch.zeros((rows, 1), dtype=torch.int64, device=model.device)
    arguments = {"encoder_outputs": BaseModelOutput(last_hidden_state=encoded), "use_cache": True}
    cache = EncoderDecoderCache(DynamicCache(config=config), DynamicCache(config=config))
    try:
        with torch.inference_mode(False), torch.no_grad():
            model(**prepared(model, ids, arguments, cache), return_dict=True)
    except (TypeError, ValueError, KeyError, AttributeError, RuntimeError):
        return None
    return ids, {**arguments, cache_name(model): cache}, cache
