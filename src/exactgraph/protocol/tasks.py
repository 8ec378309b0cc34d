"""What a model is asked to do: to go on from a prompt, or to write down what it hears. Free of torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

GENERATE, TRANSCRIBE = "generate", "transcribe"
_WHISPER, _AUTO = "WhisperForConditionalGeneration", "AutoModelForSpeechSeq2Seq"


def transcribes(protocol: Mapping[str, Any]) -> bool:
    """Whether ``protocol`` asks for transcripts. It names no other task, so that the keys of all others are what they were."""
    return protocol.get("task") == TRANSCRIBE


def is_speech(config: Mapping[str, Any]) -> bool:
    """Whether a model with this ``config.json`` hears: a Whisper, or a class of the model's own code around one."""
    return config.get("architectures") == [_WHISPER] or _AUTO in (config.get("auto_map") or {})


def stop_at_length(model: Any) -> None:
    """Switch the end-of-sequence tokens of ``model`` off in its configuration of generation.

    Every answer then has the same number of steps on every device, and what a model writes after its end-of-sequence token
    tests equality as well as what comes before. An encoder-decoder would repeat that token for ever, of which equal tokens
    say little: it may not choose it, and goes on.
    """
    config = model.generation_config
    ends = config.eos_token_id
    config.eos_token_id = None
    if model.config.is_encoder_decoder and ends is not None:
        config.suppress_tokens = sorted({*(config.suppress_tokens or []), *(ends if isinstance(ends, list) else [ends])})
