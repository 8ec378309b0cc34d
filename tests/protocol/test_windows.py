"""Windows of audio in place of prompts, on a seeded Whisper."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from exactgraph.canonical import read_json, write_json
from exactgraph.protocol.questions import Question, check_context, context_of, longest, questions
from exactgraph.protocol.tasks import stop_at_length
from exactgraph.protocol.timing import ask
from exactgraph.protocol.trace import record
from exactgraph.refusal import UserError
from exactgraph.runtime.load import load_model
from exactgraph.sources import windows
from exactgraph.sources.random_weights import write_model

CPU = torch.device("cpu")


def make(folder: Path, **generation: Any) -> Path:
    """A seeded Whisper in ``folder``, with these entries in its configuration of generation."""
    folder.mkdir()
    write_model("tiny-whisper", 0, folder)
    write_json(folder / "generation_config.json", read_json(folder / "generation_config.json") | generation)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make(tmp_path / "whisper")


def asked(folder: Path, new_tokens: int = 6, count: int = 2, dtype: str = "fp32") -> list[Question]:
    prompts = [{"id": f"heldout/{index}", "seeded": index} for index in range(count)]
    sets = {"heldout": {"new_tokens": new_tokens, "prompts": prompts}}
    protocol = {"task": "transcribe", "dtype": dtype, "sets": sets}
    return questions(protocol, folder, None, load_model(folder, "fp32", CPU))["heldout"]


def loaded(folder: Path) -> Any:
    model = load_model(folder, "fp32", CPU)
    stop_at_length(model)
    return model


def test_a_window_is_the_features_in_the_models_folder(folder: Path) -> None:
    first, second = asked(folder)
    assert (first.id, first.ids, first.final_length) == ("heldout/0", (0,), 6)
    stored = windows.read(folder, "heldout")
    assert np.array_equal(second.inputs(CPU)["input_features"].numpy(), stored[1:2])
    assert first.digest != second.digest
    assert first.digest == asked(folder, new_tokens=9)[0].digest


def test_features_have_the_models_dtype_and_one_digest_in_all(folder: Path) -> None:
    (half,), (full,) = asked(folder, count=1, dtype="bf16"), asked(folder, count=1)
    assert half.inputs(CPU)["input_features"].dtype == torch.bfloat16
    assert half.digest == full.digest


def test_more_windows_than_there_are_is_said(folder: Path) -> None:
    with pytest.raises(UserError, match="has 6 prompts in set 'heldout'; the protocol asks for 7"):
        asked(folder, count=7)


def test_a_decoder_has_a_longest_answer(folder: Path) -> None:
    context = context_of(loaded(folder))
    assert context == 128
    check_context({"heldout": asked(folder, new_tokens=128)}, context)
    with pytest.raises(UserError, match="more than the model's context of 128"):
        check_context({"heldout": asked(folder, new_tokens=129)}, context)
    assert longest({"heldout": asked(folder, new_tokens=128)}, "heldout") == 128


def test_a_trace_of_a_window_is_what_the_model_hears(folder: Path) -> None:
    model = loaded(folder)
    first, second = asked(folder)
    trace = record(model.generate, first, CPU)
    assert (trace["prompt"], trace["prompt_tokens"], trace["prompt_digest"]) == ("heldout/0", 1, first.digest)
    assert len(trace["tokens"]) == len(trace["logits"]) == len(trace["margins"]) == 6
    assert record(model.generate, first, CPU) == trace
    assert ask(model.generate, first, CPU)[0] == trace["tokens"]
    assert ask(model.generate, replace(first, new_tokens=1), CPU)[0] == trace["tokens"][:1]
    other = record(model.generate, second, CPU)
    assert other["logits"][0] != trace["logits"][0]


def plain(model: Any, window: Question) -> list[int]:
    """Greedy decoding in the plainest form: the whole sequence through the model at each step, end tokens left out."""
    ids = torch.tensor([window.ids])
    features = window.inputs(CPU)["input_features"]
    for _ in range(window.new_tokens):
        with torch.no_grad():
            logits = model(input_features=features, decoder_input_ids=ids).logits[0, -1]
        logits[model.config.eos_token_id] = -torch.inf
        ids = torch.cat([ids, logits.argmax()[None, None]], dim=1)
    return ids[0, len(window.ids) :].tolist()


@pytest.mark.parametrize("first_timestamp", [None, 3, 100])
def test_answers_have_their_length_whatever_the_model_says(tmp_path: Path, first_timestamp: int | None) -> None:
    """Whisper's own generate cuts at timestamps, of which a seeded model says many, and at padding, and goes on after them."""
    generation = {} if first_timestamp is None else {"no_timestamps_token_id": first_timestamp}
    folder = make(tmp_path / "whisper", **generation)
    model = loaded(folder)
    (window,) = asked(folder, new_tokens=40, count=1)
    assert window.ids == ((0,) if first_timestamp is None else (0, first_timestamp))
    trace = record(model.generate, window, CPU)
    assert len(trace["tokens"]) == 40
    assert trace["tokens"] == plain(model, window)
    assert ask(model.generate, window, CPU)[0] == trace["tokens"]
    if first_timestamp == 3:
        assert sum(token > 3 for token in trace["tokens"]) > 2, "no timestamps, nothing tested"


def test_the_end_of_the_text_is_never_chosen(tmp_path: Path) -> None:
    window, folder = asked(make(tmp_path / "first"), new_tokens=8, count=1)[0], tmp_path / "second"
    said = record(loaded(tmp_path / "first").generate, window, CPU)["tokens"]
    place = next(place for place in range(1, 8) if said[place] not in said[:place])
    # The same model, which ends there by its own configuration.
    make(folder, eos_token_id=[1, said[place]], suppress_tokens=[1])
    model = loaded(folder)
    assert model.generation_config.suppress_tokens == sorted([1, said[place]])
    tokens = record(model.generate, window, CPU)["tokens"]
    assert len(tokens) == 8
    assert tokens[:place] == said[:place]
    assert said[place] not in tokens


def test_a_multilingual_model_is_told_language_and_task(tmp_path: Path) -> None:
    words: dict[str, Any] = {
        "is_multilingual": True,
        "lang_to_id": {"<|en|>": 7, "<|de|>": 8},
        "task_to_id": {"transcribe": 9, "translate": 10},
        "no_timestamps_token_id": 11,
    }
    folder = make(tmp_path / "whisper", **words)
    model = loaded(folder)
    (window,) = asked(folder, count=1)
    assert window.ids == (0, 7, 9, 11)
    output = model.generate(**window.inputs(CPU), max_new_tokens=3, return_dict_in_generate=True)
    assert output.sequences[0, :4].tolist() == [0, 7, 9, 11]
    trace = record(model.generate, window, CPU)
    assert (trace["prompt_tokens"], trace["tokens"]) == (4, plain(model, window))
