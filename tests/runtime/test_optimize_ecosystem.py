"""What people put around ``model.generate`` works on an optimised model and gives the same."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
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


@pytest.fixture
def task(tmp_path: Path) -> Any:
    """A task of lm-evaluation-harness and all that it asks, on this disk."""
    lm_eval = pytest.importorskip("lm_eval", reason="lm-eval is not installed: pip install 'exactgraph[ecosystem]'")
    tasks = pytest.importorskip("lm_eval.tasks")
    rows = [{"question": f"w{3 * number} w{number + 5} w4", "answer": f"w{number}"} for number in range(6)]
    (tmp_path / "rows.json").write_text("\n".join(map(json.dumps, rows)))
    settings = {
        "task": "next_words",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(tmp_path / "rows.json")}, "cache_dir": str(tmp_path / "cache")},
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": "{{question}}",
        "doc_to_target": "{{answer}}",
        "generation_kwargs": {"max_gen_toks": 12, "do_sample": False, "until": ["w1 "]},
        "metric_list": [{"metric": "bleu"}, {"metric": "exact_match"}],
    }
    return lm_eval, tasks.get_task_dict([settings])


@pytest.mark.parametrize("name", ["step", "C022"])
def test_a_task_of_lm_evaluation_harness(llama: Any, install: Install, tokenizer: Any, task: Any, name: str) -> None:
    lm_eval, tasks = task

    def scores() -> Any:
        from lm_eval.models.huggingface import HFLM

        model = HFLM(pretrained=llama, tokenizer=tokenizer, batch_size=1, max_length=64)
        found = lm_eval.evaluate(model, tasks, bootstrap_iters=10, log_samples=True)
        answers = [sample["resps"] for sample in found["samples"]["next_words"]]
        return found["results"]["next_words"], answers

    expected = scores()
    with install(name) as session:
        assert scores() == expected
        served(session)
        assert session.fallbacks == {}
        assert session.served == 6
    assert len({str(answer) for answer in expected[1]}) > 1
