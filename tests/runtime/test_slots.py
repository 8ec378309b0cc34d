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
from exactgraph.models.slots import SlotCache, bucket_of
from exactgraph.refusal import Refused


def filled(model: Any, tokens: int) -> Any:
    with torch.no_grad():
        return cache_of(model(prompt(model.device, tokens), use_cache=True))


def test_what_was_loaded_and_appended_comes_out_with_the_same_bits(llama: Any) -> None:
    slots = SlotCache(llama)
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
    for bucket in slots._buckets.values():
        for buffer in (*bucket.keys, *bucket.values):
            buffer.fill_(float("nan"))
    assert torch.equal(begun.layers[0].keys, before), "the cache lies in the slots"


def test_nothing_is_appended_where_no_step_was_taken(llama: Any) -> None:
    slots, cache = SlotCache(llama), filled(llama, 9)
    kept = cache.layers[0].keys
    slots.unload(cache, slots.load(cache), 9)
    assert cache.layers[0].keys is kept


def test_views_share_the_buffers_and_know_their_length(llama: Any) -> None:
    slots = SlotCache(llama)
    short, long = slots.at(5), slots.at(11)
    assert (short.get_seq_length(), long.get_seq_length()) == (4, 10)
    assert short.layers[0].keys.data_ptr() == long.layers[0].keys.data_ptr()
    assert long.get_mask_sizes(1, 0) == (11, 0)


def test_buckets_hold_128_times_a_power_of_two() -> None:
    lengths = (1, 128, 129, 256, 257, 513, 8192, 8193)
    assert [bucket_of(length) for length in lengths] == [128, 128, 256, 256, 512, 1024, 8192, 16384]


def test_a_sequence_that_fills_its_bucket_goes_on_in_a_larger_one(llama: Any) -> None:
    slots, whole = SlotCache(llama), filled(llama, 300)
    begun = copy.deepcopy(whole)
    for layer in begun.layers:
        layer.keys, layer.values = (states[:, :, :100].clone() for states in (layer.keys, layer.values))
    assert slots.load(begun) == 100
    assert list(slots._buckets) == [128]
    for length in range(101, 301):
        slots.grow(length)
        for layer, source in zip(slots.at(length).layers, whole.layers, strict=True):
            new = slice(length - 1, length)
            keys, values = layer.update(source.keys[:, :, new], source.values[:, :, new])
        assert torch.equal(keys, source.keys[:, :, :length])
        assert torch.equal(values, source.values[:, :, :length])
    assert list(slots._buckets) == [128, 256, 512]
    slots.unload(begun, 100, 300)
    assert_same_cache(begun, whole)


def test_a_class_writes_the_slot_that_the_device_names(llama: Any) -> None:
    slots, whole = SlotCache(llama), filled(llama, 13)
    slot = torch.tensor([12], device=llama.device)
    for layer, source in zip(slots.up_to(256, slot).layers, whole.layers, strict=True):
        keys, values = layer.update(source.keys[:, :, 12:], source.values[:, :, 12:])
        assert keys.shape[2] == values.shape[2] == 256
        assert torch.equal(keys[:, :, 12:13], source.keys[:, :, 12:])
        assert torch.equal(values[:, :, 12:13], source.values[:, :, 12:])


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
    SlotCache(model)
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
    slots = SlotCache(model)
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
