"""What people put around ``model.generate`` works on an optimised model and gives the same."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from runtime_outputs import attached
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast, TextIteratorStreamer, pipeline

from exactgraph.runtime.session import Session

Install = Callable[..., Session]
_TEMPLATE = "{% for message in messages %}{{ message['role'] }} {{ message['content'] }} {% endfor %}assistant"


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    words = {f"w{index}": index for index in range(509)} | {"user": 509, "assistant": 510, "<unk>": 511}
    whole = Tokenizer(WordLevel(words, unk_token="<unk>"))
    whole.pre_tokenizer = Whitespace()
    made = PreTrainedTokenizerFast(tokenizer_object=whole, unk_token="<unk>", pad_token="w1", eos_token="w1")
    made.chat_template = _TEMPLATE
    return made


def served(session: Session) -> None:
    assert session.last is not None
    assert session.last.refusal is None, session.last.refusal


@pytest.mark.parametrize("name", ["step", "C022"])
@pytest.mark.parametrize("asked", ["w9 w17 w4", [{"role": "user", "content": "w9 w17 w4"}]])
def test_the_pipeline_of_transformers(llama: Any, install: Install, tokenizer: Any, name: str, asked: Any) -> None:
    settings = {"max_new_tokens": 12, "do_sample": False}
    expected = pipeline("text-generation", model=llama, tokenizer=tokenizer)(asked, **settings)
    with install(name) as session:
        ask = pipeline("text-generation", model=llama, tokenizer=tokenizer)
        assert ask(asked, **settings) == expected
        served(session)
        assert ask([asked, asked], batch_size=1, **settings) == [expected, expected]
        served(session)


@pytest.mark.parametrize("name", ["step", "C022"])
def test_a_chat_template(llama: Any, install: Install, tokenizer: Any, name: str) -> None:
    chat = [{"role": "user", "content": "w9 w17 w4"}]
    inputs = tokenizer.apply_chat_template(chat, return_tensors="pt", return_dict=True).to(llama.device)
    with install(name) as session:
        got = llama.generate(**inputs, max_new_tokens=12, do_sample=False)
        served(session)
        assert torch.equal(got, session.eager(**inputs, max_new_tokens=12, do_sample=False))


@pytest.mark.parametrize("name", ["step", "C022"])
def test_a_streamer_that_is_read_in_another_thread(llama: Any, install: Install, tokenizer: Any, name: str) -> None:
    inputs = tokenizer("w9 w17 w4", return_tensors="pt").to(llama.device)
    settings = {"max_new_tokens": 12, "do_sample": False, "attention_mask": inputs["attention_mask"]}
    with install(name) as session:
        expected = tokenizer.decode(session.eager(inputs["input_ids"], **settings)[0])
        streamer = TextIteratorStreamer(tokenizer, timeout=60)
        work = threading.Thread(target=llama.generate, args=(inputs["input_ids"],), kwargs={**settings, "streamer": streamer})
        work.start()
        got = "".join(streamer)
        work.join()
        served(session)
    assert got.split() == expected.split()


def test_a_model_that_accelerate_prepared(llama: Any, install: Install) -> None:
    accelerate = pytest.importorskip("accelerate")
    ids = torch.arange(5, 14, device=llama.device)[None]
    with install("step") as session:
        prepared = accelerate.Accelerator(cpu=llama.device.type == "cpu").prepare(llama)
        assert prepared is llama
        got = prepared.generate(ids, max_new_tokens=12, do_sample=False)
        served(session)
        assert torch.equal(got, session.eager(ids, max_new_tokens=12, do_sample=False))
        assert not attached(llama)
