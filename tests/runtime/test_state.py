"""What a snapshot of a model sees, and what it lets pass."""

from __future__ import annotations

import types
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from runtime_models import make_llama

from exactgraph.runtime.state import Snapshot

CPU = torch.device("cpu")


def _reordered(model: Any) -> None:
    layer = model.model.layers[0]
    layer._modules = OrderedDict(reversed(layer._modules.items()))


def _another_class(model: Any) -> None:
    model.model.norm.__class__ = type("Norm", (type(model.model.norm),), {})


def _renamed(model: Any) -> None:
    layer = model.model.layers[0].mlp.up_proj
    layer._parameters["kernel"] = layer._parameters.pop("weight")


def _without(model: Any) -> None:
    del model.model.layers[0].mlp.scales


def _inner(model: Any) -> None:
    model.model.layers[0].mlp.scales["default"][0] = 2.0


def _content(model: Any) -> None:
    model.model.layers[0].mlp.shift.data = torch.ones(3)


def _function(model: Any) -> None:
    model.model.layers[0].mlp.rule = types.MethodType(lambda self: None, model)


def _whole(model: Any) -> None:
    model.model.norm.variance_epsilon = 1


def _of_a_part(model: Any) -> None:
    model.model.layers[0].mlp.config.hidden_act = "gelu"


def _buffer(model: Any) -> None:
    model.model.rotary_emb.inv_freq = model.model.rotary_emb.inv_freq.clone()


def _no_bias(model: Any) -> None:
    model.lm_head.bias = torch.nn.Parameter(torch.zeros(512))


def _new(model: Any) -> None:
    model.model.layers[0].mlp.gain = 2.0


def _swapped(model: Any) -> None:
    mlp = model.model.layers[0].mlp
    mlp.gate_proj, mlp.up_proj = mlp.up_proj, mlp.gate_proj


@pytest.fixture
def model() -> Any:
    made = make_llama(CPU)
    mlp = made.model.layers[0].mlp
    mlp.scales, mlp.shift, mlp.rule = {"default": [1.0]}, torch.zeros(3), lambda: None
    # A part with a configuration of its own, as models of several modalities have.
    mlp.config = type(made.config)(hidden_act="silu")
    made.model.norm.variance_epsilon = 1.0
    return made


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (_reordered, "modules"),
        (_another_class, "modules"),
        (_swapped, "modules"),
        (_renamed, "weights"),
        (_buffer, "weights"),
        (_no_bias, "weights"),
        (_without, "model.layers.0.mlp.scales"),
        (_inner, "model.layers.0.mlp.scales"),
        (_content, "model.layers.0.mlp.shift"),
        (_function, "model.layers.0.mlp.rule"),
        (_new, "model.layers.0.mlp.gain"),
        (_whole, "model.norm.variance_epsilon"),
        (_of_a_part, "config.hidden_act"),
    ],
)
def test_a_change_is_named(model: Any, change: Callable[[Any], None], what: str) -> None:
    snapshot = Snapshot(model, list(model.named_modules()))
    assert snapshot.changed(snapshot.suspects()) is None
    change(model)
    assert snapshot.changed(snapshot.suspects()) == what


def test_what_is_no_change_passes(model: Any) -> None:
    snapshot = Snapshot(model, list(model.named_modules()))
    with torch.no_grad():
        model.lm_head.weight.mul_(2)
    model.lm_head.weight.data.zero_()
    model.model.layers[0].mlp.shift.fill_(3)
    model.model.norm.variance_epsilon = 1.0
    model.model.layers[0].mlp.scales["default"] = [1.0]
    model.model.norm._note = "private"
    model.generation_config.temperature = 0.5
    model.config.pad_token_id = 7
    model.name_or_path = "elsewhere"
    assert snapshot.changed(snapshot.suspects()) is None


def test_an_identity_is_not_used_twice(model: Any) -> None:
    """A function in the place of one that is gone may have its address, and so its identity."""
    mlp = model.model.layers[0].mlp
    snapshot = Snapshot(model, list(model.named_modules()))
    for _ in range(20):
        mlp.rule = None
        mlp.rule = lambda: None
        assert snapshot.changed(snapshot.suspects()) == "model.layers.0.mlp.rule"
