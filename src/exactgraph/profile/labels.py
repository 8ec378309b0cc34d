"""Labels on the work of a model while it is profiled: of which kind it is, and in which part of the layout it happens.

Kinds are told by the classes of modules, which serves any model and decides nothing but figures. Parts, which candidates name
as what they touch, come from the layout alone.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from transformers.cache_utils import Cache
from transformers.generation.logits_process import LogitsProcessor
from transformers.pytorch_utils import Conv1D

from exactgraph.models import parts
from exactgraph.models.forwards import attached
from exactgraph.models.head import output_head
from exactgraph.models.layout import layout_of
from exactgraph.refusal import Refused

PREFIX = "exactgraph"
#: The label of the forward pass as a whole.
FORWARD = f"{PREFIX}|{parts.OTHER}|forward"
#: Marks the moment at which the logits of a step are handed to the logits processors.
STEP = f"{PREFIX}|step|"

_ENDINGS = {
    "Attention": parts.ATTENTION,
    "MLP": parts.ACTIVATION,
    "Norm": parts.NORM,
    "RotaryEmbedding": parts.ROTARY,
}
_ROTARY_FUNCTION = "apply_rotary_pos_emb"


class StepMark(LogitsProcessor):
    """Changes nothing; leaves :data:`STEP` in the profile once a step, in transformers' decode loop and in ours."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        with torch.profiler.record_function(STEP):
            return scores


@contextmanager
def labelled(model: Any) -> Iterator[None]:
    """``model`` with a label around the work of each module that has one, of the cache and of the rotary embedding.

    Forward functions stand in on the instances meanwhile and are taken away at the end.
    """
    with ExitStack() as stack:
        stack.enter_context(attached({module: _under(label, module.forward) for module, label in _labels(model).items()}))
        stack.enter_context(patch.object(Cache, "update", _under(label_of(parts.CACHE), Cache.update)))
        for home in {type(module).__module__ for module in model.modules()}:
            function = getattr(sys.modules[home], _ROTARY_FUNCTION, None)
            if function is not None:
                labelled_function = _under(label_of(parts.ROTARY), function)
                stack.enter_context(patch.object(sys.modules[home], _ROTARY_FUNCTION, labelled_function))
        yield


def label_of(kind: str, part: str = "") -> str:
    """The label of one kind of work in one part of the layout."""
    return f"{PREFIX}|{kind}|{part}"


def knows_parts(model: Any) -> bool:
    """Whether the parts of ``model`` can be told."""
    return _parts(model) is not None


def _under(label: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def under(*args: Any, **kwargs: Any) -> Any:
        with torch.profiler.record_function(label):
            return function(*args, **kwargs)

    return under


def _labels(model: Any) -> dict[nn.Module, str]:
    in_part = _parts(model) or {}
    labels: dict[nn.Module, str] = {model: FORWARD}
    head = output_head(model)
    for module in model.modules():
        kind = parts.HEAD if module is head else _kind(module)
        if kind is not None:
            labels[module] = label_of(kind, in_part.get(module, ""))
    return labels


def _kind(module: nn.Module) -> str | None:
    if isinstance(module, nn.Linear | Conv1D):
        return parts.PROJECTION
    name = type(module).__name__
    return next((kind for ending, kind in _ENDINGS.items() if name.endswith(ending)), None)


def _parts(model: Any) -> dict[nn.Module, str] | None:
    try:
        layout = layout_of(model)
    except Refused:
        return None
    found: dict[nn.Module, str] = {layout.final_norm: parts.FINAL_NORM, layout.head: parts.HEAD}
    for block in layout.blocks:
        found |= {block.input_norm: parts.INPUT_NORM, block.post_norm: parts.POST_NORM, block.mlp: parts.MLP}
        found |= dict.fromkeys((block.q, block.k, block.v), parts.QKV)
    return found
