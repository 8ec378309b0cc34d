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
from transformers.cache_utils import DynamicCache, DynamicLayer
from transformers.generation.configuration_utils import GenerationMode
from transformers.generation.utils import GenerateDecoderOnlyOutput, GenerateEncoderDecoderOutput

from exactgraph.candidates.base import Stepper
from exactgraph.models.cache import cache_name
from exactgraph.models.inputs import length_refusal
from exactgraph.refusal import Refused
from exactgraph.runtime.answer import Answer
from exactgraph.runtime.greedy import Stops, decode_greedily
from exactgraph.runtime.rules import Rules

# What transformers itself hands to every forward pass of a text decoder; the cache comes under a name of its own.
_FORWARD_ARGUMENTS = {"attention_mask", "position_ids", "use_cache", "logits_to_keep"}
_MODES = (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE)


@dataclass
class Steps:
    """Forward passes after the prompt's, by how they ran; ``why`` the last eager ones did."""

    captured: int = 0
    eager: int = 0
    why: str | None = None


def _check_call(
    model: Any, input_ids: torch.Tensor, config: Any, model_kwargs: dict[str, Any], batches: tuple[int, ...]
) -> None:
    if config.get_generation_mode() not in _MODES:
        raise Refused("generation-mode", f"Generation mode {config.get_generation_mode().value} runs eager.")
    if input_ids.shape[0] not in batches:
        captured = ", ".join(map(str, batches))
        raise Refused("batch", f"Steps are captured for batches of {captured}; this call has {input_ids.shape[0]} sequences.")
    if config.return_dict_in_generate and (config.output_attentions or config.output_hidden_states):
        raise Refused("inner-outputs", "Attentions and hidden states are not captured.")
    if config.prefill_chunk_size is not None or not config.use_cache:
        raise Refused("cache-use", "Chunked prefill and decoding without a cache run eager.")
    if model.config.is_encoder_decoder:
        return  # the rest is for the stepper to say
    for name, value in model_kwargs.items():
        if value is not None and name not in _FORWARD_ARGUMENTS and name != cache_name(model):
            raise Refused("model-argument", f"The model's own argument {name} is not captured.")
    mask = model_kwargs.get("attention_mask")
    if mask is not None and not bool((mask == 1).all()):
        raise Refused("padding", "A prompt with masked positions runs eager.")
    _check_cache(model, model_kwargs.get(cache_name(model)), mask, input_ids.shape[1])
    refusal = length_refusal(model, config.max_length)
    if refusal is not None:
        raise Refused(refusal.reason, refusal.sentence)


def _check_cache(model: Any, cache: Any, mask: Any, tokens: int) -> None:
    if type(cache) is not DynamicCache or getattr(cache, "offloading", False):
        raise Refused("cache-kind", "Only the default cache is captured.")
    # A caller's own has to be what generate would have made, and hold the beginning of this very prompt.
    own = DynamicCache(config=model.config.get_text_config(decoder=True))
    kinds, own_kinds = ([type(layer) for layer in one.layers] or [DynamicLayer] for one in (cache, own))
    if set(kinds) != set(own_kinds):
        raise Refused("cache-kind", "The cache has other layers than generate would make.")
    if cache.get_seq_length() >= tokens or (mask is not None and mask.shape[1] != tokens):
        raise Refused("cache-kind", "The cache holds something else than the beginning of the prompt.")


class DecodeLoop:
    """One call of ``generate`` under a stepper. ``steps`` counts what ran how; ``begun`` once it can refuse no more.

    ``keeps_cache``: whether the caller has the cache, because it was the caller who made it.
    """

    def __init__(self, stepper: Stepper, streamer: Any, *, keeps_cache: bool) -> None:
        self._stepper = stepper
        self._streamer = streamer
        self._keeps_cache = keeps_cache
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
        """The ``custom_generate`` hook: ``input_ids`` int64 ``(batch, prompt tokens)``. Refuses before any effect."""
        config = generation_config
        try:
            _check_call(model, input_ids, config, model_kwargs, self._stepper.batches)
            self._stepper.serve(input_ids, model_kwargs)
        except Refused as refused:
            if not self.begun:
                raise
            # Whisper decodes window by window, all in one call, and windows before this one have had their effects.
            self.steps.why = refused.refusal.sentence
            return self._in_transformers_loop(
                model, input_ids, logits_processor, stopping_criteria, generation_config=config, **model_kwargs
            )
        self.begun = self._captured = True
        cache = model_kwargs[cache_name(model)]
        answer = Answer(input_ids, config)
        rules = Rules(logits_processor, stopping_criteria, config, input_ids)

        if self._streamer is not None:
            self._streamer.put(input_ids.cpu())
        self._stepper.receive(cache, input_ids, own=not self._keeps_cache)
        logits = model._prefill(input_ids, config, model_kwargs, is_first_iteration=True).logits[:, -1]
        self._stepper.begin(cache)
        with model._optimize_model_for_decode():
            stops = None if self._streamer is not None else rules.on_device()
            if stops is None:
                finished = self._take(logits, answer, rules)
            else:
                rules.choose(logits, answer)
                finished = self._ahead(answer, stops, rules)
            while not finished:
                finished = self._take(self._next(model, answer.ids, cache), answer, rules)
        if self._streamer is not None:
            self._streamer.end()
        wants = config.return_dict_in_generate
        if self._captured and (wants or self._keeps_cache):
            # The last token was chosen and not fed.
            self._stepper.end(cache, answer.ids.shape[1] - 1)
        if not wants:
            return answer.ids
        # The class differs between versions in what it calls the cache.
        output: dict[str, Any] = {"sequences": answer.ids, "scores": answer.scores, "logits": answer.logits}
        kind = GenerateEncoderDecoderOutput if model.config.is_encoder_decoder else GenerateDecoderOnlyOutput
        return kind(**output, **{cache_name(model): cache})

    def _in_transformers_loop(self, model: Any, input_ids: torch.Tensor, *arguments: Any, **model_kwargs: Any) -> Any:
        """The whole decoding as transformers does it; ``input_ids`` int64 ``(sequences, prompt tokens)``."""
        if self._streamer is not None:
            self._streamer.put(input_ids.cpu())
        result = type(model)._sample(model, input_ids, *arguments, streamer=self._streamer, **model_kwargs)
        sequences = result if isinstance(result, torch.Tensor) else result.sequences
        self.steps.eager += sequences.shape[1] - input_ids.shape[1] - 1
        return result

    def _take(self, logits: torch.Tensor, answer: Answer, rules: Rules) -> bool:
        """Choose the next tokens from ``logits``, ``(batch, vocabulary)``. Returns whether all sequences are finished."""
        tokens = rules.choose(logits, answer)
        finished = rules.finished(answer)
        self._stepper.prepare()  # while the device is still at the last step
        ended = bool(finished)
        if self._streamer is not None:
            self._streamer.put(tokens.cpu())
            # A streamer may have done anything. What is asked again is in the processor's caches by now, so it takes less.
            self._stepper.prepare()
        return ended

    def _ahead(self, answer: Answer, stops: Stops, rules: Rules) -> bool:
        """Decode greedily without waiting for the device, as far as steps are captured. Returns whether the end is reached."""
        before = answer.ids.shape[1]
        assert rules.suppressed is not None  # or there were no ``stops``
        finished = decode_greedily(self._stepper, answer, stops, rules.suppressed)
        self.steps.captured += answer.ids.shape[1] - before
        return finished

    def _next(self, model: Any, ids: torch.Tensor, cache: Any) -> torch.Tensor:
        """Logits ``(batch, vocabulary)`` after the last tokens of ``ids``."""
        if self._captured:
            self._stepper.feed(ids[:, -1:])
            logits = self._stepper.run()
            if logits is not None:
                self.steps.captured += 1
                return logits
            self._stepper.end(cache, ids.shape[1] - 1)
            self._captured = False
            self.steps.why = self._stepper.why
        self.steps.eager += 1
        last: torch.Tensor = model(**self._stepper.eager_arguments(ids, cache), return_dict=True).logits[:, -1]
        return last
