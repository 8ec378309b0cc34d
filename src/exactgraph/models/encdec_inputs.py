"""Which encoder-decoders' steps can be captured, and how their inputs come about.

Any class will do whose ``forward`` takes the names that ``generate`` uses and returns logits: Whisper, T5, BART, Marian, or a
model of the user's own around one of them. Where a class prepares the inputs of a step itself, its own method is asked in
every step, as in eager; where the method is known to give the same inputs but for the token, it is asked once a call.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from transformers import DynamicCache, EncoderDecoderCache
from transformers.generation.utils import GenerationMixin

from exactgraph.models.cache import cache_name
from exactgraph.models.step_inputs import GROWING
from exactgraph.refusal import Refused

TOKEN = "decoder_input_ids"
_STEP_ARGUMENTS = (TOKEN, "encoder_outputs", "use_cache")
# What the loop takes for granted. Inputs may be prepared by a method of the model's own: that one is called.
_OF_THE_LOOP = ("_update_model_kwargs_for_generation", "_prepare_cache_for_generation", "_prefill", "_sample")
_KNOWN = {
    ("transformers.generation.utils", "GenerationMixin.prepare_inputs_for_generation"),
    ("transformers.models.whisper.modeling_whisper", "WhisperForConditionalGeneration.prepare_inputs_for_generation"),
}
# With these every step has inputs of its own.
_BY_STEP = (GROWING, "decoder_position_ids", "token_type_ids", "mm_token_type_ids")


def check_encoder_decoder(model: Any) -> None:
    """Raise ``Refused`` where the decode steps of ``model`` cannot be captured."""
    kind = type(model)
    if not model.config.is_encoder_decoder:
        raise Refused("no-encoder", f"{kind.__name__} has no encoder; the candidate step captures the steps of decoders.")
    parameters = inspect.signature(kind.forward).parameters
    names = {*_STEP_ARGUMENTS, cache_name(model)}
    lacking = [] if _takes_any(parameters) else sorted(names - parameters.keys())
    if lacking:
        raise Refused("step-arguments", f"{kind.__name__} takes no {', '.join(lacking)}, so its steps are not captured.")
    for name in _OF_THE_LOOP:
        if getattr(kind, name, None) is not getattr(GenerationMixin, name):
            raise Refused("own-inputs", f"{kind.__name__} has a {name} of its own, which captured steps would pass over.")


def check_call(model: Any, model_kwargs: dict[str, Any]) -> None:
    """Raise ``Refused`` where this call's cache or encoder is none that captured steps can use."""
    cache = model_kwargs.get(cache_name(model))
    if type(cache) is not EncoderDecoderCache or any(
        type(part) is not DynamicCache for part in (cache.self_attention_cache, cache.cross_attention_cache)
    ):
        raise Refused("cache-kind", "Only the default cache is captured.")
    if cache.get_seq_length() or any(cache.is_updated.values()) or getattr(cache.self_attention_cache, "offloading", False):
        raise Refused("cache-kind", "Only an empty cache on the device is captured.")
    if model_kwargs.get("encoder_outputs") is None:
        raise Refused("no-encoder-outputs", f"{type(model).__name__} gives generate no encoder output.")
    if model_kwargs.get("decoder_inputs_embeds") is not None:
        raise Refused("argument", "generate(decoder_inputs_embeds=…) runs eager.")


def asked_once(model: Any, model_kwargs: dict[str, Any]) -> bool:
    """Whether the inputs of all steps of a call are the same but for the token."""
    method = type(model).prepare_inputs_for_generation
    own = inspect.unwrap(method)
    known = (own.__module__, own.__qualname__) in _KNOWN
    return known and not model.is_remote_code() and all(model_kwargs.get(name) is None for name in _BY_STEP)


def prepared(model: Any, ids: torch.Tensor, model_kwargs: dict[str, Any], cache: Any) -> dict[str, Any]:
    """The inputs of the step after ``ids``, int64 ``(1, tokens)``, with ``cache`` as the model's cache."""
    arguments = {**model_kwargs, cache_name(model): cache}
    inputs: dict[str, Any] = model.prepare_inputs_for_generation(ids, next_sequence_length=1, **arguments)
    return inputs


def with_decoder_mask(model: Any, inputs: dict[str, Any], length: int) -> dict[str, Any]:
    """``inputs`` of a step with a mask for ``length`` tokens of the decoder where they have none, all ones.

    Some decoders (BART) would make it themselves, and read the length on the host for that.
    """
    if inputs.get(GROWING) is not None or GROWING not in inspect.signature(type(model).forward).parameters:
        return inputs
    rows = inputs[TOKEN].shape[0]
    return {**inputs, GROWING: torch.ones((rows, length), dtype=torch.int64, device=model.device)}


def _takes_any(parameters: Any) -> bool:
    return any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
