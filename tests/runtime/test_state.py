"""What a snapshot of a model sees, and what it lets pass."""

from __future__ import annotations

import types
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from runtime_models import make_llama

from exactgraph.runtime.fitness import interfered
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


def changed(snapshot: Snapshot) -> str | None:
    """What a look finds; a walk through every module has to find the same."""
    found = snapshot.changed(snapshot.suspects())
    assert found == snapshot.changed(snapshot._named)
    return found


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
    assert changed(snapshot) is None
    change(model)
    assert changed(snapshot) == what


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
    assert changed(snapshot) is None


def test_an_identity_is_not_used_twice(model: Any) -> None:
    """A function in the place of one that is gone may have its address, and so its identity."""
    mlp = model.model.layers[0].mlp
    snapshot = Snapshot(model, list(model.named_modules()))
    for _ in range(20):
        mlp.rule = None
        mlp.rule = lambda: None
        assert changed(snapshot) == "model.layers.0.mlp.rule"


def _norm(model: Any) -> Any:
    return model.model.layers[0].input_layernorm


def _down(model: Any) -> Any:
    return model.model.layers[0].mlp.down_proj


def _true(model: Any) -> None:
    _norm(model).variance_epsilon = True


def _renamed_attribute(model: Any) -> None:
    """As many as before, and the values are where they were."""
    own = vars(_norm(model))
    value = own.pop("variance_epsilon")
    own["epsilon"] = value


def _private_for_public(model: Any) -> None:
    own = vars(_norm(model))
    own["gain"] = own.pop("_note")


def _other_attributes(model: Any) -> None:
    norm = _norm(model)
    norm.__dict__ = {**vars(norm), "variance_epsilon": 2.0}


def _other_group(model: Any) -> None:
    down = _down(model)
    down._parameters = {"weight": torch.nn.Parameter(down.weight.detach().clone())}


def _none_for_a_weight(model: Any) -> None:
    _down(model)._parameters["weight"] = None


def _weight_for_none(model: Any) -> None:
    _down(model)._parameters["bias"] = torch.nn.Parameter(torch.zeros(256))


def _new_buffer(model: Any) -> None:
    _down(model).register_buffer("scale", torch.ones(1))


def _moved(model: Any) -> None:
    _down(model).weight.data = _down(model).weight.data.clone()


def _reshaped(model: Any) -> None:
    weight = _down(model).weight
    weight.data = weight.data.view(-1, 128)


def _transposed(model: Any) -> None:
    weight = _down(model).weight
    with torch.no_grad():
        weight.set_(weight.untyped_storage(), 0, weight.shape, (1, weight.shape[0]))


def _retyped(model: Any) -> None:
    weight = _norm(model).weight
    weight.data = weight.data.view(torch.bfloat16)[:256]


def _emptied(model: Any) -> None:
    _down(model).weight.untyped_storage().resize_(0)


def _another_child(model: Any) -> None:
    model.model.layers[0].mlp._modules["act_fn"] = torch.nn.SiLU()


def _child_of_a_leaf(model: Any) -> None:
    _norm(model).inner = torch.nn.Identity()


def _order(model: Any) -> None:
    children = model.model.layers[0]._modules
    children["self_attn"] = children.pop("self_attn")


def _mode(model: Any) -> None:
    _norm(model).training = True


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (_true, "model.layers.0.input_layernorm.variance_epsilon"),
        (_renamed_attribute, "model.layers.0.input_layernorm.variance_epsilon"),
        (_private_for_public, "model.layers.0.input_layernorm.gain"),
        (_other_attributes, "model.layers.0.input_layernorm.variance_epsilon"),
        (_other_group, "weights"),
        (_none_for_a_weight, "weights"),
        (_weight_for_none, "weights"),
        (_new_buffer, "weights"),
        (_moved, "weights"),
        (_reshaped, "weights"),
        (_transposed, "weights"),
        (_retyped, "weights"),
        (_emptied, "weights"),
        (_another_child, "modules"),
        (_child_of_a_leaf, "modules"),
        (_order, "modules"),
        (_mode, "mode"),
    ],
)
def test_a_glance_sees_what_a_walk_sees(change: Callable[[Any], None], what: str) -> None:
    model = make_llama(CPU)
    _norm(model)._note = 1
    _norm(model).variance_epsilon = 1
    snapshot = Snapshot(model, list(model.named_modules()))
    walked = {name for name, _ in snapshot.suspects()}
    assert {"", *walked} == {*walked} < {name for name, _ in model.named_modules()}
    assert changed(snapshot) is None
    change(model)
    assert changed(snapshot) == what
    assert snapshot.suspects() == snapshot._named


def _hook(model: Any) -> None:
    _down(model).register_forward_hook(lambda module, inputs, output: None)


def _hooks(model: Any) -> None:
    _norm(model)._forward_pre_hooks = {0: lambda module, inputs: None}


def _forward(model: Any) -> None:
    _norm(model).forward = type(_norm(model)).forward.__get__(_norm(model))


def _compiled(model: Any) -> None:
    _norm(model).compile()


def _compiled_kind(model: Any) -> None:
    _norm(model).__class__._compiled_call_impl = lambda *arguments: None


@pytest.mark.parametrize("change", [_hook, _hooks, _forward, _compiled, _compiled_kind])
def test_a_module_that_is_interfered_with_is_walked_to(change: Callable[[Any], None]) -> None:
    model = make_llama(CPU)
    kind: Any = type(_norm(model))
    snapshot = Snapshot(model, list(model.named_modules()))
    try:
        change(model)
        assert interfered(model, snapshot.suspects(), {}) is not None
    finally:
        if "_compiled_call_impl" in vars(kind):
            del kind._compiled_call_impl


def test_what_transformers_leaves_behind_is_no_reason_to_walk() -> None:
    model = make_llama(CPU)
    snapshot = Snapshot(model, list(model.named_modules()))
    few = snapshot.suspects()
    assert few != snapshot._named
    model.generate(torch.tensor([[5, 6]]), max_new_tokens=2, output_hidden_states=True, return_dict_in_generate=True)
    assert any(module._forward_hooks for module in model.modules()), "nothing is left behind"
    assert snapshot.suspects() == few


def test_a_snapshot_keeps_no_memory() -> None:
    model = make_llama(CPU)
    model.model.norm.shift = torch.zeros(3)
    snapshot = Snapshot(model, list(model.named_modules()))
    gone = [weakref.ref(_down(model).weight), weakref.ref(model.model.norm.shift)]
    _down(model).weight = torch.nn.Parameter(torch.zeros(256, 640))
    model.model.norm.shift = None
    assert changed(snapshot) == "weights"
    assert [found() for found in gone] == [None, None]
