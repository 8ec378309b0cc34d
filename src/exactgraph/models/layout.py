"""Which module plays which part in a decoder, found by type.

A layout is given only for classes whose decoder layers are known to compute norm, attention, norm, MLP in the way of Llama;
anything else is refused by name rather than guessed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from exactgraph.refusal import Refused


@dataclass(frozen=True)
class Layout:
    """``mlps``: the MLP of each decoder layer, hidden ``(batch, tokens, hidden)`` in and out. ``hidden_size`` in elements."""

    mlps: tuple[nn.Module, ...]
    hidden_size: int


def _mlp_types() -> dict[type[Any], type[nn.Module]]:
    from transformers.models.llama.modeling_llama import LlamaForCausalLM, LlamaMLP
    from transformers.models.mistral.modeling_mistral import MistralForCausalLM, MistralMLP
    from transformers.models.qwen2.modeling_qwen2 import Qwen2ForCausalLM, Qwen2MLP
    from transformers.models.qwen3.modeling_qwen3 import Qwen3ForCausalLM, Qwen3MLP

    return {
        LlamaForCausalLM: LlamaMLP,
        MistralForCausalLM: MistralMLP,
        Qwen2ForCausalLM: Qwen2MLP,
        Qwen3ForCausalLM: Qwen3MLP,
    }


def layout_of(model: Any) -> Layout:
    """The layout of ``model``. Raises ``Refused`` (``unknown-layout``) for a class or a module that is not known."""
    mlp_type = _mlp_types().get(type(model))
    if mlp_type is None:
        raise Refused("unknown-layout", f"The layers of {type(model).__name__} are not known to exactgraph.")
    mlps = tuple(layer.mlp for layer in model.model.layers)
    for index, mlp in enumerate(mlps):
        # A subclass or a wrapper (an adapter, a quantised module) computes something else.
        if type(mlp) is not mlp_type:
            raise Refused("unknown-layout", f"The MLP of layer {index} is a {type(mlp).__name__}, not a {mlp_type.__name__}.")
    return Layout(mlps=mlps, hidden_size=int(model.config.hidden_size))
