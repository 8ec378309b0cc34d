"""The published ladder, C022 to C026, against eager: bits, counts of what runs, layouts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from ladder_models import FAMILIES, make
from runtime_models import make_llama, prompt
from runtime_outputs import ask, assert_same, assert_same_cache, attached
from sessions import open_session

from exactgraph.candidates.base import Context
from exactgraph.candidates.registry import candidate
from exactgraph.capture import capturer_for
from exactgraph.models.cache import cache_of
from exactgraph.models.layout import layout_of
from exactgraph.refusal import Refused
from exactgraph.runtime.session import Session

LADDER = ("C022", "C023", "C024", "C025", "C026")
GRAPHS = {"C022": (1, 0), "C023": (3, 2), "C024": (2, 2), "C025": (2, 2), "C026": (2, 2)}


def context_for(model: Any) -> Context:
    return Context(capturer_for(model.device), budget=64, validated_length=64, confirmed_length=64)


def installed(model: Any, name: str, attention: str) -> Session:
    context = context_for(model)
    chosen = candidate(name)
    return open_session(model, chosen, context, attention)


@pytest.fixture
def attention(device: torch.device) -> str:
    """Windows need an attention mask, which the flash backend does not take."""
    return "math" if device.type == "cuda" else "default"


@pytest.mark.parametrize("name", LADDER)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_rung_has_eagers_bits(device: torch.device, attention: str, family: str, name: str) -> None:
    model = make(family, device)
    with installed(model, name, attention) as session:
        # A prompt of one token takes the graphs from its first step.
        for tokens, seed in ((9, 1), (1, 2), (30, 3), (9, 4)):
            ids = prompt(device, tokens, seed)
            got, expected = ask(model.generate, ids), ask(session.eager, ids)
            assert_same(got, expected)
            assert_same_cache(cache_of(got), cache_of(expected))
            assert session.last is not None
            assert session.last.refusal is None
            assert len(set(got.sequences[0, tokens:].tolist())) > 4, "degenerate answers prove little"


@pytest.mark.parametrize("name", LADDER)
def test_sampling_at_a_seed(llama: Any, install: Callable[..., Session], name: str) -> None:
    ids = prompt(llama.device, 10)
    arguments = {"do_sample": True, "temperature": 0.8, "top_k": 40, "top_p": 0.9}
    with install(name) as session:
        torch.manual_seed(7)
        expected = ask(session.eager, ids, **arguments)
        after = torch.rand(4, device=llama.device)
        torch.manual_seed(7)
        assert_same(ask(llama.generate, ids, **arguments), expected)
        assert torch.equal(torch.rand(4, device=llama.device), after)


@pytest.mark.parametrize("name", LADDER)
@pytest.mark.parametrize(
    "arguments",
    [{"num_beams": 3}, {"num_return_sequences": 2, "do_sample": True}, {"prompt_lookup_num_tokens": 3}, {"use_cache": False}],
    ids=lambda arguments: next(iter(arguments)),
)
def test_other_ways_of_generating(llama: Any, install: Callable[..., Session], name: str, arguments: dict[str, Any]) -> None:
    """Shapes that are not one token of one sequence, and steps of one token between them."""
    ids = prompt(llama.device, 10)
    with install(name) as session:
        got, expected = [], []
        for generate, kept in ((llama.generate, got), (session.eager, expected)):
            torch.manual_seed(3)
            kept.append(generate(ids, **{"max_new_tokens": 12, "do_sample": False, **arguments}))
        assert torch.equal(got[0], expected[0])


@pytest.mark.parametrize("name", LADDER)
def test_the_plan_says_what_is_captured(llama: Any, name: str) -> None:
    context = context_for(llama)
    chosen = candidate(name)
    decisions = chosen.plan(llama, context)
    per_layer, once = GRAPHS[name]
    assert context.capturer.graphs == len(decisions["captured"]) == per_layer + once
    assert not attached(llama)
    chosen.install(llama, decisions, context)
    assert context.capturer.graphs - (per_layer + once) == decisions["graphs"] == 3 * per_layer + once
    assert decisions["shape"] == [1, 1, 256]
    assert not attached(llama)


def counted(model: Any, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each norm really ran, by the norm's name. On the class: captured work calls bound methods of it."""
    names = {module: name for name, module in model.named_modules()}
    counts: Counter[str] = Counter()
    norm = type(model.model.norm)
    forward = norm.forward

    def counting(self: Any, hidden: torch.Tensor) -> Any:
        counts[names[self]] += 1
        return forward(self, hidden)

    monkeypatch.setattr(norm, "forward", counting)
    return counts


PREFILL_NORMS = {"C022": 1, "C023": 1, "C024": 1, "C025": 3, "C026": 1}


@pytest.mark.parametrize("name", LADDER)
def test_each_norm_runs_once_a_step(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """On the emulated capture a replay runs what was captured, so every run is seen."""
    model = make_llama(torch.device("cpu"))
    counts = counted(model, monkeypatch)
    with installed(model, name, "default"):
        runs = []
        for tokens in (1, 6):
            counts.clear()
            ask(model.generate, prompt(model.device, 9), tokens)
            runs.append(Counter(counts))
    prefill, steps = runs[0], runs[1] - runs[0]
    for layer in range(3):
        assert prefill[f"model.layers.{layer}.input_layernorm"] == PREFILL_NORMS[name]
        assert prefill[f"model.layers.{layer}.post_attention_layernorm"] == 1
        assert steps[f"model.layers.{layer}.input_layernorm"] == 5
        assert steps[f"model.layers.{layer}.post_attention_layernorm"] == 5
    assert (prefill["model.norm"], steps["model.norm"]) == (1, 5)


REPLACED = {
    "C022": ("mlps",),
    "C023": ("mlps", "input_norm", "post_norm", "ends"),
    "C024": ("mlps", "input_norm", "post_norm", "ends"),
    "C025": ("mlps", "input_norm", "post_norm", "ends", "q", "k", "v"),
    "C026": ("mlps", "input_norm", "post_norm", "ends", "q", "k", "v"),
}


@pytest.mark.parametrize("name", LADDER)
def test_what_is_captured_stands_in_for_its_module(llama: Any, name: str) -> None:
    layout = layout_of(llama)
    forwards = candidate(name).install(llama, {}, context_for(llama)).forwards
    expected = {layout.decoder} if name in ("C025", "C026") else set()
    for what in REPLACED[name]:
        if what == "ends":
            expected |= {layout.final_norm, layout.head}
        else:
            expected |= {getattr(block, "mlp" if what == "mlps" else what) for block in layout.blocks}
    assert set(forwards) == expected


@pytest.mark.parametrize("name", LADDER)
@pytest.mark.parametrize("family", ["gpt2", "gemma2", "granite"])
def test_other_layouts_are_refused_by_name(name: str, family: str) -> None:
    import transformers

    sizes = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "vocab_size": 64,
        "pad_token_id": 0,
    }
    model: Any
    if family == "gpt2":
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_embd=32, n_layer=1, n_head=2, vocab_size=64))
    elif family == "gemma2":
        model = transformers.Gemma2ForCausalLM(transformers.Gemma2Config(**sizes))
    else:
        model = transformers.GraniteForCausalLM(transformers.GraniteConfig(**sizes))
    with pytest.raises(Refused, match=f"{type(model).__name__} are not known") as caught:
        candidate(name).plan(model, context_for(model))
    assert caught.value.refusal.reason == "unknown-layout"


def test_a_head_reads_the_embeddings_of_a_tied_model(device: torch.device, attention: str) -> None:
    """Writes in place reach the graph, so it holds the embedding's matrix and not a copy."""
    model = make("llama-tied", device)
    ids = prompt(device, 9)
    with installed(model, "C026", attention) as session:
        before = ask(model.generate, ids, 6)
        with torch.no_grad():
            model.model.embed_tokens.weight.mul_(0.5)
        after = ask(model.generate, ids, 6)
        assert_same(after, ask(session.eager, ids, 6))
    assert not torch.equal(torch.cat(after.logits), torch.cat(before.logits))


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("model.layers.1.self_attn.k_proj", "The key projection of layer 1 is a Wrapped, not a Linear."),
        ("model.layers.2.input_layernorm", "The input norm of layer 2 is a Wrapped, not a LlamaRMSNorm."),
        ("model.layers.0.post_attention_layernorm", "The post-attention norm of layer 0 is a Wrapped, not a LlamaRMSNorm."),
        ("model.layers.1.self_attn", "The attention of layer 1 is a Wrapped, not a LlamaAttention."),
        ("model.layers.1", "Layer 1 is a Wrapped, not a LlamaDecoderLayer."),
        ("model.norm", "The final norm is a Wrapped, not a LlamaRMSNorm."),
        ("lm_head", "The output head is a Wrapped, not a Linear."),
    ],
)
def test_a_wrapped_module_is_refused(path: str, sentence: str) -> None:
    model = make_llama(torch.device("cpu"))
    module = model.get_submodule(path)
    module.__class__ = type("Wrapped", (type(module),), {})
    with pytest.raises(Refused) as caught:
        layout_of(model)
    assert caught.value.refusal.sentence == sentence


def test_a_module_with_two_parts_is_refused() -> None:
    model = make_llama(torch.device("cpu"))
    model.model.layers[1].input_layernorm = model.model.layers[0].input_layernorm
    with pytest.raises(Refused, match="The input norm of layer 1 is a module that has another part as well"):
        layout_of(model)
