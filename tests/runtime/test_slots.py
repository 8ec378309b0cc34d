"""The KV cache in fixed buffers, and which models it and the layouts know."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from decoder_models import make
from runtime_models import prompt
from runtime_outputs import assert_same_cache
from torch import nn
from transformers import DynamicCache

from exactgraph.models.cache import cache_name, cache_of
from exactgraph.models.layout import layout_of
from exactgraph.models.slots import SlotCache
from exactgraph.refusal import Refused


def filled(model: Any, tokens: int) -> Any:
    with torch.no_grad():
        return cache_of(model(prompt(model.device, tokens), use_cache=True))


def test_what_was_loaded_and_appended_comes_out_with_the_same_bits(llama: Any) -> None:
    slots = SlotCache(llama, 16)
    # The same tokens in one pass: 9 that are loaded, 4 that are appended slot by slot.
    whole = filled(llama, 13)
    begun = copy.deepcopy(whole)
    for layer in begun.layers:
        layer.keys, layer.values = (states[:, :, :9].clone() for states in (layer.keys, layer.values))
    assert slots.load(begun) == 9
    for length in range(10, 14):
        for layer, source in zip(slots.at(length).layers, whole.layers, strict=True):
            new = slice(length - 1, length)
            keys, values = layer.update(source.keys[:, :, new], source.values[:, :, new])
            assert keys.shape[2] == values.shape[2] == length
            assert torch.equal(keys, source.keys[:, :, :length])
            assert torch.equal(values, source.values[:, :, :length])
    slots.unload(begun, 9, 13)
    assert_same_cache(begun, whole)
    before = begun.layers[0].keys.clone()
    for buffer in (*slots._keys, *slots._values):
        buffer.fill_(float("nan"))
    assert torch.equal(begun.layers[0].keys, before), "the cache lies in the slots"


def test_nothing_is_appended_where_no_step_was_taken(llama: Any) -> None:
    slots, cache = SlotCache(llama, 16), filled(llama, 9)
    kept = cache.layers[0].keys
    slots.unload(cache, slots.load(cache), 9)
    assert cache.layers[0].keys is kept


def test_views_share_the_buffers_and_know_their_length(llama: Any) -> None:
    slots = SlotCache(llama, 16)
    short, long = slots.at(5), slots.at(11)
    assert (short.get_seq_length(), long.get_seq_length()) == (4, 10)
    assert short.layers[0].keys.data_ptr() == long.layers[0].keys.data_ptr()
    assert long.get_mask_sizes(1, 0) == (11, 0)


def test_a_sequence_beyond_the_capacity_is_left_alone(llama: Any) -> None:
    slots = SlotCache(llama, 8)
    for buffer in slots._keys:
        buffer.zero_()
    assert slots.load(filled(llama, 9)) == 9
    assert not slots._keys[0].any()


def config_of(name: str, **changes: Any) -> Any:
    import transformers

    sizes = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "vocab_size": 64,
        "head_dim": 16,
    }
    return getattr(transformers, f"{name}Config")(**sizes, **changes)


@pytest.mark.parametrize("name", ["Llama", "Mistral", "Qwen2", "Qwen3"])
def test_known_layouts(name: str) -> None:
    import transformers

    changes = {"sliding_window": None} if name == "Mistral" else {}
    model = getattr(transformers, f"{name}ForCausalLM")(config_of(name, **changes))
    layout = layout_of(model)
    assert list(layout.mlps) == [layer.mlp for layer in model.model.layers]
    assert layout.hidden_size == 32
    SlotCache(model, 8)
    assert cache_name(model) in ("cache", "past_key_values")


def test_a_class_that_is_not_known_is_refused() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=1, n_head=2, vocab_size=64))
    with pytest.raises(Refused, match="GPT2LMHeadModel are not known") as caught:
        layout_of(model)
    assert caught.value.refusal.reason == "unknown-layout"


def test_a_wrapped_mlp_is_refused(llama: Any) -> None:
    class Wrapped(type(llama.model.layers[0].mlp)):  # type: ignore[misc]
        pass

    layer = llama.model.layers[2]
    layer.mlp.__class__ = Wrapped
    with pytest.raises(Refused, match="The MLP of layer 2 is a Wrapped, not a LlamaMLP") as caught:
        layout_of(llama)
    assert caught.value.refusal.reason == "unknown-layout"
    layer.mlp = nn.Identity()
    with pytest.raises(Refused, match="Identity"):
        layout_of(llama)


def test_a_layer_that_slides_shows_what_eagers_does(device: torch.device) -> None:
    model = make("gemma3", device)
    slots = SlotCache(model, 64)
    eager = DynamicCache(config=model.config)
    begun = DynamicCache(config=model.config)
    torch.manual_seed(0)
    whole = torch.randn(1, 2, 40, 32, device=device, dtype=model.dtype)
    for layer in (*eager.layers, *begun.layers):
        layer.update(whole[:, :, :9], -whole[:, :, :9])
    assert slots.load(begun) == 9
    for length in range(10, 41):
        new = whole[:, :, length - 1 : length]
        for layer, source in zip(slots.at(length).layers, eager.layers, strict=True):
            assert layer.is_sliding == source.is_sliding
            assert layer.get_mask_sizes(1) == source.get_mask_sizes(1)
            assert layer.get_seq_length() == source.get_seq_length()
            for got, expected in zip(layer.update(new, -new), source.update(new, -new), strict=True):
                assert torch.equal(got, expected)
    slots.unload(begun, 9, 40)
    assert_same_cache(begun, eager)
