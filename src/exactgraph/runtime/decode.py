"""Our decode loop: ``model.generate`` with the forward pass of each step replaced by a stepper.

transformers prepares everything (processors, stopping criteria, cache) and calls the loop through its ``custom_generate``
hook, so every argument of ``generate`` keeps its meaning. The loop does what transformers' own sampling loop does, in the same
order: copy the logits, process, choose, append, ask the stopping criteria, stream. What it cannot do it refuses before
anything has happened, and the caller runs eager.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache
from transformers.generation.configuration_utils import GenerationMode
from transformers.generation.utils import GenerateDecoderOnlyOutput, GenerateEncoderDecoderOutput

from exactgraph.candidates.base import Stepper
from exactgraph.models.cache import cache_name
from exactgraph.models.inputs import length_refusal
from exactgraph.refusal import Refused

# What transformers itself hands to every forward pass of a text decoder; the cache comes under a name of its own.
_FORWARD_ARGUMENTS = {"attention_mask", "position_ids", "use_cache", "logits_to_keep"}
_MODES = (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE)


@dataclass
class Steps:
    """Forward passes of one call after the prompt's, by how they ran."""

    captured: int = 0
    eager: int = 0


def _check_call(model: Any, input_ids: torch.Tensor, config: Any, model_kwargs: dict[str, Any]) -> None:
    if config.get_generation_mode() not in _MODES:
        raise Refused("generation-mode", f"Generation mode {config.get_generation_mode().value} runs eager.")
    if input_ids.shape[0] != 1:
        raise Refused("batch", f"Only batch 1 is captured; this call has {input_ids.shape[0]} sequences.")
    if config.return_dict_in_generate and (config.output_attentions or config.output_hidden_states):
        raise Refused("inner-outputs", "Attentions and hidden states are not captured.")
    if config.prefill_chunk_size is not None or not config.use_cache:
        raise Refused("cache-use", "Chunked prefill and decoding without a cache run eager.")
    if model.config.is_encoder_decoder:
        return
    for name, value in model_kwargs.items():
        if value is not None and name not in _FORWARD_ARGUMENTS and name != cache_name(model):
            raise Refused("model-argument", f"The model's own argument {name} is not captured.")
    mask = model_kwargs.get("attention_mask")
    if mask is not None and not bool((mask == 1).all()):
        raise Refused("padding", "A prompt with masked positions runs eager.")
    if type(model_kwargs.get(cache_name(model))) is not DynamicCache:
        raise Refused("cache-kind", "Only the default cache is captured.")
    refusal = length_refusal(model, config.max_length)
    if refusal is not None:
        raise Refused(refusal.reason, refusal.sentence)


class DecodeLoop:
    """One call of ``generate`` under a stepper. ``steps`` counts what ran how; ``begun`` once it can refuse no more."""

    def __init__(self, stepper: Stepper, streamer: Any) -> None:
        self._stepper = stepper
        self._streamer = streamer
        self._captured = True
        self.steps = Steps()
        self.begun = False

    def __call__(
        self,
        model: Any,
        input_ids: torch.Tensor,
        logits_processor: Any = None,
        stopping_criteria: Any = None,
        generation_config: Any = None,
        **model_kwargs: Any,
    ) -> Any:
        """The ``custom_generate`` hook: ``input_ids`` int64 ``(1, prompt tokens)``. Raises ``Refused`` before any effect."""
        config = generation_config
        try:
            _check_call(model, input_ids, config, model_kwargs)
            if model.config.is_encoder_decoder:
                self._stepper.serve(input_ids, model_kwargs)
        except Refused:
            if not self.begun:
                raise
            # Whisper decodes window by window, all in one call, and windows before this one have had their effects.
            return self._in_transformers_loop(
                model, input_ids, logits_processor, stopping_criteria, generation_config=config, **model_kwargs
            )
        self.begun = self._captured = True
        wants = config.return_dict_in_generate
        scores: tuple[torch.Tensor, ...] | None = () if wants and config.output_scores else None
        raw_logits: tuple[torch.Tensor, ...] | None = () if wants and config.output_logits else None
        cache = model_kwargs[cache_name(model)]

        if self._streamer is not None:
            self._streamer.put(input_ids.cpu())
        logits = model._prefill(input_ids, config, model_kwargs, is_first_iteration=True).logits[:, -1]
        self._stepper.begin(cache)
        with model._optimize_model_for_decode():
            while True:
                # A copy, so that nothing a caller receives lies in a buffer that the next step overwrites.
                next_logits = logits.to(copy=True, dtype=torch.float32, device=input_ids.device)
                next_scores = logits_processor(input_ids, next_logits)
                if scores is not None:
                    scores += (next_scores,)
                if raw_logits is not None:
                    raw_logits += (next_logits,)
                tokens = _choose(next_scores, config.do_sample)
                input_ids = torch.cat([input_ids, tokens[:, None]], dim=-1)
                finished = stopping_criteria(input_ids, scores).all()
                if self._streamer is not None:
                    self._streamer.put(tokens.cpu())
                if finished:
                    break
                logits = self._next(model, input_ids, cache)
        if self._streamer is not None:
            self._streamer.end()
        if not wants:
            return input_ids
        if self._captured:
            self._stepper.end(cache)
        # The class differs between versions in what it calls the cache.
        output: dict[str, Any] = {"sequences": input_ids, "scores": scores, "logits": raw_logits, cache_name(model): cache}
        kind = GenerateEncoderDecoderOutput if model.config.is_encoder_decoder else GenerateDecoderOnlyOutput
        return kind(**output)

    def _in_transformers_loop(self, model: Any, input_ids: torch.Tensor, *arguments: Any, **model_kwargs: Any) -> Any:
        """The whole decoding as transformers does it; ``input_ids`` int64 ``(sequences, prompt tokens)``."""
        if self._streamer is not None:
            self._streamer.put(input_ids.cpu())
        result = type(model)._sample(model, input_ids, *arguments, streamer=self._streamer, **model_kwargs)
        sequences = result if isinstance(result, torch.Tensor) else result.sequences
        self.steps.eager += sequences.shape[1] - input_ids.shape[1] - 1
        return result

    def _next(self, model: Any, input_ids: torch.Tensor, cache: Any) -> torch.Tensor:
        """Logits ``(rows, vocabulary)`` after ``input_ids``, of which the last is not in the cache."""
        token, length = input_ids[:, -1:], input_ids.shape[1]
        if self._captured:
            logits = self._stepper.step(token)
            if logits is not None:
                self.steps.captured += 1
                return logits
            self._stepper.end(cache)
            self._captured = False
        self.steps.eager += 1
        if model.config.is_encoder_decoder:
            eager_logits: torch.Tensor = model(**self._stepper.eager_arguments(input_ids), return_dict=True).logits[:, -1]
            return eager_logits
        output = model(
            input_ids=token,
            position_ids=torch.full((1, 1), length - 1, dtype=torch.int64, device=token.device),
            use_cache=True,
            logits_to_keep=1,
            return_dict=True,
            **{cache_name(model): cache},
        )
        last: torch.Tensor = output.logits[:, -1]
        return last


def _choose(scores: torch.Tensor, do_sample: bool) -> torch.Tensor:
    if do_sample:
        return torch.multinomial(torch.nn.functional.softmax(scores, dim=-1), num_samples=1).squeeze(1)
    return torch.argmax(scores, dim=-1)
