"""Rotary embeddings whose frequencies are recomputed at run time.

Dynamic and long RoPE look at the positions in every step and may take other frequencies. The host waits for that look, so
captured steps leave it out. That is right exactly as far as it changes nothing, and this is tried for every position that may
be captured, bit by bit.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from exactgraph.refusal import Refused

Forward = Callable[..., Any]


class HeldRope:
    """``forwards`` stand in for those of the model's rotary embeddings; inside :meth:`held` they take the frequencies as they
    are.

    Raises ``Refused`` (``dynamic-rope``) where frequencies may change within the first ``capacity`` positions.
    """

    def __init__(self, model: Any, capacity: int) -> None:
        self._held = False
        self.forwards: dict[nn.Module, Forward] = {}
        for module in model.modules():
            if _recomputed(module):
                still = _still_forward(model, module)
                _check(model, module, still, capacity)
                self.forwards[module] = self._forward(module, still)

    @contextmanager
    def held(self) -> Iterator[None]:
        """No frequencies change in the block."""
        self._held = True
        try:
            yield
        finally:
            self._held = False

    def _forward(self, module: nn.Module, still: Forward) -> Forward:
        own = module.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            return still(*args, **kwargs) if self._held else own(*args, **kwargs)

        return forward


def recomputes(model: Any) -> bool:
    """Whether ``model`` recomputes frequencies of a rotary embedding at run time."""
    return any(_recomputed(module) for module in model.modules())


def _kinds(module: nn.Module) -> dict[str | None, str]:
    """The RoPE type of a rotary embedding by kind of layer; a module that serves all alike has the kind None."""
    kinds = getattr(module, "rope_type", None)
    if isinstance(kinds, dict):
        return {layer: kind for layer, kind in kinds.items() if isinstance(kind, str)}
    return {None: kinds} if isinstance(kinds, str) else {}


def _recomputed(module: nn.Module) -> list[str | None]:
    """The kinds of layer whose frequencies are recomputed."""
    return [layer for layer, kind in _kinds(module).items() if "dynamic" in kind or kind == "longrope"]


def _still_forward(model: Any, module: nn.Module) -> Forward:
    """The forward of ``module`` without the update that transformers wraps around it."""
    wrapped: Any = type(module).forward
    if not hasattr(wrapped, "__wrapped__"):
        name = type(module).__name__
        raise Refused("dynamic-rope", f"It is not known how {name} of {type(model).__name__} recomputes its frequencies.")
    unwrapped: Any = inspect.unwrap(wrapped)
    bound: Forward = unwrapped.__get__(module)
    return bound


def _check(model: Any, module: nn.Module, still: Forward, capacity: int) -> None:
    """Compare cosines and sines of every position with those of a copy that may update itself."""
    like = torch.empty((1, 1, 1), dtype=model.dtype, device=model.device)
    with torch.inference_mode(False), torch.no_grad():
        for layer in _recomputed(module):
            arguments = {} if layer is None else {"layer_type": layer}
            updated = copy.deepcopy(module)
            for position in range(capacity):
                positions = torch.full((1, 1), position, dtype=torch.int64, device=model.device)
                expected = updated(like, positions, **arguments)
                if not _same(expected, still(like, positions, **arguments)) or not _same(_buffers(updated), _buffers(module)):
                    raise Refused(
                        "dynamic-rope",
                        f"{type(model).__name__} recomputes the frequencies of its {_kinds(module)[layer]} RoPE past "
                        f"{position} tokens, and {capacity} may be captured.",
                    )


def _buffers(module: nn.Module) -> list[torch.Tensor]:
    """All buffers; one that has two names counts twice, because the copy may already have parted them."""
    return [buffer for _, buffer in module.named_buffers(remove_duplicate=False)]


def _same(ours: Any, theirs: Any) -> bool:
    return all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))
