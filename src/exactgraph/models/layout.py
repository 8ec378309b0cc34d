"""Which module plays which part in a decoder, found by type.

A layout is given only for classes whose decoder layers are known to compute norm, attention, norm, MLP in the way of Llama: a
norm's output goes to Q, K and V, or to the MLP, and nowhere else. Anything else is refused by name rather than guessed:
Granite, for one, has modules of the same names but scales what it adds to the residual.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from torch import nn

from exactgraph.refusal import Refused

# The module of transformers that defines a family, and what the names of its classes begin with.
_FAMILIES = {
    "transformers.models.llama.modeling_llama": "Llama",
    "transformers.models.mistral.modeling_mistral": "Mistral",
    "transformers.models.qwen2.modeling_qwen2": "Qwen2",
    "transformers.models.qwen3.modeling_qwen3": "Qwen3",
    "transformers.models.smollm3.modeling_smollm3": "SmolLM3",
}


@dataclass(frozen=True)
class Block:
    """One decoder layer. Norms and MLP take hidden ``(batch, tokens, hidden)`` and return the same shape; the projections
    return ``(batch, tokens, heads * head_dim)``, biases included. Norms of Q and K come after them and are no part of it."""

    input_norm: nn.Module
    q: nn.Linear
    k: nn.Linear
    v: nn.Linear
    post_norm: nn.Module
    mlp: nn.Module


@dataclass(frozen=True)
class Layout:
    """``decoder``: what turns tokens into hidden states. ``blocks``: its layers, in the order in which they run.

    ``head``: hidden ``(batch, tokens, hidden)`` to logits ``(batch, tokens, vocabulary)``; its matrix may be the embedding's.
    ``hidden_size`` in elements.
    """

    decoder: nn.Module
    blocks: tuple[Block, ...]
    final_norm: nn.Module
    head: nn.Linear
    hidden_size: int

    @property
    def mlps(self) -> tuple[nn.Module, ...]:
        return tuple(block.mlp for block in self.blocks)


def layout_of(model: Any) -> Layout:
    """The layout of ``model``. Raises ``Refused`` (``unknown-layout``) for a class or a module that is not known."""
    home = type(model).__module__
    family = _FAMILIES.get(home)
    if family is None or type(model) is not getattr(import_module(home), f"{family}ForCausalLM"):
        raise Refused("unknown-layout", f"The layers of {type(model).__name__} are not known to exactgraph.")
    seen: set[int] = set()
    for what, module, expected in _parts(model, family):
        # A subclass or a wrapper (an adapter, a quantised module) computes something else.
        wanted: type = nn.Linear if expected is None else getattr(import_module(home), expected)
        if type(module) is not wanted:
            raise Refused("unknown-layout", f"{what} is a {type(module).__name__}, not a {wanted.__name__}.")
        # A module has one forward, and parts of two layers need two.
        if id(module) in seen:
            raise Refused("unknown-layout", f"{what} is a module that has another part as well.")
        seen.add(id(module))
    blocks = tuple(
        Block(
            input_norm=layer.input_layernorm,
            q=layer.self_attn.q_proj,
            k=layer.self_attn.k_proj,
            v=layer.self_attn.v_proj,
            post_norm=layer.post_attention_layernorm,
            mlp=layer.mlp,
        )
        for layer in model.model.layers
    )
    return Layout(model.model, blocks, model.model.norm, model.lm_head, int(model.config.hidden_size))


def _parts(model: Any, family: str) -> Iterator[tuple[str, nn.Module, str | None]]:
    """What each module is, the module, and the class that it has to be; None is torch's own linear layer."""
    norm = f"{family}RMSNorm"
    yield "The decoder", model.model, f"{family}Model"
    for index, layer in enumerate(model.model.layers):
        yield f"Layer {index}", layer, f"{family}DecoderLayer"
        yield f"The input norm of layer {index}", layer.input_layernorm, norm
        yield f"The attention of layer {index}", layer.self_attn, f"{family}Attention"
        yield f"The query projection of layer {index}", layer.self_attn.q_proj, None
        yield f"The key projection of layer {index}", layer.self_attn.k_proj, None
        yield f"The value projection of layer {index}", layer.self_attn.v_proj, None
        yield f"The post-attention norm of layer {index}", layer.post_attention_layernorm, norm
        yield f"The MLP of layer {index}", layer.mlp, f"{family}MLP"
    yield "The final norm", model.model.norm, norm
    yield "The output head", model.lm_head, None
