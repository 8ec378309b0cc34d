"""What a model is called with in each step of ``generate``, and where a model has its own mind about it.

Our loop hands over one token and its position, as transformers does for nearly all decoders. A model that prepares its inputs
itself may do anything between two steps, so it is refused unless it is known what it does.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from transformers.generation.utils import GenerationMixin

from exactgraph.models.cache import cache_name
from exactgraph.refusal import Refusal, Refused

# Of these the loop takes the place, or takes the results for granted.
_OF_THE_LOOP = ("prepare_inputs_for_generation", "_update_model_kwargs_for_generation", "_prepare_cache_for_generation")
_STEP_ARGUMENTS = ("input_ids", "position_ids", "use_cache", "logits_to_keep")
# Once a sequence is longer than ``original_max_position_embeddings``, these drop their cache and begin anew.
_BEGIN_ANEW = {("transformers.models.phi3.modeling_phi3", "Phi3ForCausalLM")}


def check_inputs(model: Any) -> None:
    """Raise ``Refused`` where a step of ``model`` cannot be run by handing over a token and its position."""
    kind = type(model)
    if model.config.is_encoder_decoder:
        raise Refused("encoder-decoder", f"{kind.__name__} has an encoder; steps of decoders alone are captured.")
    parameters = inspect.signature(kind.forward).parameters
    lacking = [name for name in _STEP_ARGUMENTS if name not in parameters]
    if lacking:
        raise Refused("step-arguments", f"{kind.__name__} takes no {', '.join(lacking)}, so its steps are not captured.")
    if _begins_anew(model):
        return
    for name in _OF_THE_LOOP:
        if getattr(kind, name, None) is not getattr(GenerationMixin, name):
            raise Refused("own-inputs", f"{kind.__name__} has a {name} of its own, which captured steps would pass over.")


def step_arguments(model: Any, token: torch.Tensor, position: torch.Tensor, cache: Any) -> dict[str, Any]:
    """What ``forward`` is called with in one step: ``token`` and its ``position``, int64 ``(batch, 1)``."""
    return {
        "input_ids": token,
        "position_ids": position,
        "use_cache": True,
        "logits_to_keep": 1,
        cache_name(model): cache,
    }


def length_refusal(model: Any, length: int | None) -> Refusal | None:
    """Why a call that may reach ``length`` tokens must not run in our loop, or None."""
    if not _begins_anew(model):
        return None
    limit = model.config.original_max_position_embeddings
    if length is not None and length <= limit:
        return None
    return Refusal("begins-anew", f"{type(model).__name__} drops its cache past {limit} tokens, and this call may go there.")


def _begins_anew(model: Any) -> bool:
    return (type(model).__module__, type(model).__name__) in _BEGIN_ANEW
