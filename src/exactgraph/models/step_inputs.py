"""What ``forward`` is called with in a decode step, in static buffers.

transformers (or the model's own ``prepare_inputs_for_generation``) makes the inputs of a step; here they are taken apart into
tensors, which are copied into buffers, and everything else, which has to be the same in every step that shares a graph. The
cache is no part of them. The mask of the decoder's own tokens grows with the sequence; its buffer is as long as the slots.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from exactgraph.capture.buffers import buffer
from exactgraph.refusal import Refused

GROWING = "decoder_attention_mask"
_CONSTANTS = (type(None), bool, int, float, str, torch.dtype)

Form = tuple[Any, ...]


def form_of(inputs: dict[str, Any]) -> Form:
    """What the inputs of two steps must have in common to share buffers: names, shapes, dtypes, and values of non-tensors.

    Raises ``Refused`` (``model-argument``) for a value of a kind that is not known to stay the same.
    """
    return tuple((name, *_form(name, value)) for name, value in sorted(inputs.items()))


class StepInputs:
    """Buffers for inputs of the form of ``inputs``, for sequences of at most ``capacity`` tokens."""

    def __init__(self, inputs: dict[str, Any], capacity: int) -> None:
        self._parts: dict[str, tuple[list[Any], TreeSpec]] = {}
        self._filled: dict[tuple[str, int], tuple[torch.Tensor, int]] = {}
        for name, value in inputs.items():
            leaves, spec = tree_flatten(value)
            self._parts[name] = ([_buffer(name, leaf, capacity) for leaf in leaves], spec)

    def fill(self, inputs: dict[str, Any]) -> None:
        """Copy the tensors of ``inputs`` into the buffers, but those that were copied last and have not changed since."""
        for name, (buffers, _) in self._parts.items():
            for index, (static, leaf) in enumerate(zip(buffers, tree_flatten(inputs[name])[0], strict=True)):
                if not isinstance(static, torch.Tensor):
                    continue
                seen = None if leaf.is_inference() else (leaf, leaf._version)
                last = self._filled.get((name, index))
                if seen is not None and last is not None and last[0] is leaf and last[1] == seen[1]:
                    continue
                (static[:, : leaf.shape[1]] if name == GROWING else static).copy_(leaf)
                if seen is None:
                    self._filled.pop((name, index), None)
                else:
                    self._filled[name, index] = seen

    def set(self, name: str, value: torch.Tensor) -> None:
        """Copy ``value`` into the buffer of the input ``name``, a tensor, as often as need be expanded."""
        self._parts[name][0][0].copy_(value)
        self._filled.pop((name, 0), None)

    def forget(self) -> None:
        """Hold on to no tensor of the caller's."""
        self._filled.clear()

    def at(self, length: int) -> dict[str, Any]:
        """Arguments of ``forward`` for the step that takes a sequence to ``length`` tokens: views of the buffers."""
        arguments = {name: tree_unflatten(buffers, spec) for name, (buffers, spec) in self._parts.items()}
        if arguments.get(GROWING) is not None:
            arguments[GROWING] = arguments[GROWING][:, :length]
        return arguments


def _form(name: str, value: Any) -> Form:
    leaves, spec = tree_flatten(value)
    parts: list[Any] = []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            shape = leaf.shape[:1] if name == GROWING else leaf.shape
            parts.append((tuple(shape), leaf.dtype, str(leaf.device)))
        elif isinstance(leaf, _CONSTANTS):
            parts.append((type(leaf).__name__, leaf))
        else:
            raise Refused("model-argument", f"The model's own argument {name} holds a {type(leaf).__name__}: not captured.")
    return repr(spec), tuple(parts)


def _buffer(name: str, leaf: Any, capacity: int) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    shape = (leaf.shape[0], capacity) if name == GROWING else tuple(leaf.shape)
    return buffer(shape, leaf.dtype, leaf.device).zero_()
