"""What a call gave, as JSON that two processes can compare: token IDs, and a digest of every tensor's bits."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import torch

from exactgraph.models.cache import CACHE_NAMES

Result = dict[str, Any]


def bits(value: Any) -> Any:
    """A digest of the tensors in ``value``: dtypes, shapes and bytes."""
    sha = hashlib.sha256()
    _feed(sha, value)
    return sha.hexdigest()


def _feed(sha: Any, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        sha.update(f"{value.dtype}{tuple(value.shape)}".encode())
        sha.update(
            value.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes() if value.ndim else str(value).encode()
        )
    elif isinstance(value, (list, tuple)):
        sha.update(f"[{len(value)}".encode())
        for entry in value:
            _feed(sha, entry)
    else:
        sha.update(repr(value).encode())


def of_cache(cache: Any) -> Result:
    """Length and contents of a cache."""
    layers = [(layer.keys, layer.values) for layer in cache.layers if layer.is_initialized]
    return {"length": int(cache.get_seq_length()), "bits": bits(layers)}


def of_output(output: Any) -> Result:
    """Everything in what ``generate`` returned."""
    if isinstance(output, torch.Tensor):
        return {"tokens": output.tolist()}
    result: Result = {"tokens": output.sequences.tolist(), "class": type(output).__name__}
    for name, value in output.items():
        if name == "sequences" or value is None:
            continue
        result[name] = of_cache(value) if name in CACHE_NAMES else bits(value)
    return result


def of_random(device: torch.device) -> str:
    """The states of the generators."""
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return bits(states)


def attempted(call: Callable[[], Result]) -> Result:
    """What ``call`` gave, or the type of the error that it died of: where eager fails, so must we, and in the same way."""
    try:
        return call()
    except Exception as error:
        return {"error": type(error).__name__}
