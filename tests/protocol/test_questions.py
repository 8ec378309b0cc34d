"""Prompts as token IDs."""

from __future__ import annotations

import unicodedata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from exactgraph.canonical import write_json
from exactgraph.protocol import prompts
from exactgraph.protocol.questions import Question, longest, questions
from exactgraph.refusal import UserError

DECODER = SimpleNamespace(config=SimpleNamespace(is_encoder_decoder=False))
WORDS = ["<s>", "<user>", "<answer>", "<unk>", "one", "two", "three"]
TEMPLATE = "<s> {% for m in messages %}<user> {{ m['content'] }} {% endfor %}{% if add_generation_prompt %}<answer>{% endif %}"


@pytest.fixture
def tokenizer() -> Any:
    """Words are tokens; plain texts get ``<s>`` in front."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<s>", unk_token="<unk>")


def protocol(*texts: str, new_tokens: int = 8) -> dict[str, Any]:
    asked = [{"id": f"heldout/{index}", "text": text} for index, text in enumerate(texts)]
    return {"sets": {"heldout": {"new_tokens": new_tokens, "prompts": asked}}}


def test_without_a_chat_template_a_text_is_tokenised_as_it_stands(tokenizer: Any, tmp_path: Path) -> None:
    asked = questions(protocol("one two", "three"), tmp_path, tokenizer, DECODER)["heldout"]
    assert [question.ids for question in asked] == [(0, 4, 5), (0, 6)]
    assert [question.id for question in asked] == ["heldout/0", "heldout/1"]


def test_with_a_chat_template_a_text_is_a_users_turn_with_one_begin_token(tokenizer: Any, tmp_path: Path) -> None:
    tokenizer.chat_template = TEMPLATE
    (question,) = questions(protocol("one two"), tmp_path, tokenizer, DECODER)["heldout"]
    assert question.ids == (0, 1, 4, 5, 2)


def test_a_text_for_an_encoder_is_read_and_the_decoder_begins_with_its_own_token(tokenizer: Any, tmp_path: Path) -> None:
    first, second = questions(protocol("one two", "three"), tmp_path, tokenizer, encoder_decoder(7))["heldout"]
    assert first.inputs(torch.device("cpu"))["inputs"].tolist() == [[0, 4, 5]]
    assert (first.ids, first.final_length) == ((7,), 8)
    assert first.digest != second.digest
    assert first.answer(torch.tensor([[7, 1, 2, 3]])) == [1, 2, 3]


@pytest.mark.parametrize(("start", "begin", "token"), [(None, 3, 3), ([5, 6], 3, 5), (0, 3, 0)])
def test_a_decoder_begins_as_generate_has_it_begin(tokenizer: Any, tmp_path: Path, start: Any, begin: int, token: int) -> None:
    (asked,) = questions(protocol("one"), tmp_path, tokenizer, encoder_decoder(start, begin))["heldout"]
    assert asked.ids == (token,)


def test_a_decoder_that_begins_with_nothing_is_refused(tokenizer: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="give it a decoder_start_token_id"):
        questions(protocol("one"), tmp_path, tokenizer, encoder_decoder(None, None))


def encoder_decoder(start: Any, begin: int | None = None) -> Any:
    generation = SimpleNamespace(decoder_start_token_id=start, bos_token_id=begin)
    return SimpleNamespace(config=SimpleNamespace(is_encoder_decoder=True), generation_config=generation)


def seeded(folder: Path, count: int) -> None:
    write_json(folder / "prompts.json", {"heldout": [[7, 8, 9 + index] for index in range(count)]})


def test_without_a_tokenizer_the_model_folder_brings_the_ids(tmp_path: Path) -> None:
    seeded(tmp_path, 3)
    asked = questions(protocol("not", "read"), tmp_path, None, DECODER)["heldout"]
    assert [question.ids for question in asked] == [(7, 8, 9), (7, 8, 10)]


def test_too_few_seeded_prompts_are_said(tmp_path: Path) -> None:
    seeded(tmp_path, 1)
    with pytest.raises(UserError, match="has 1 prompts in set 'heldout'; the protocol asks for 2"):
        questions(protocol("a", "b"), tmp_path, None, DECODER)


def test_the_last_token_is_chosen_not_fed() -> None:
    assert Question("heldout/0", (1, 2, 3), 5).final_length == 7
    assert Question("heldout/0", (1, 2, 3), 1).final_length == 3


def test_the_longest_over_sets() -> None:
    sets = {"heldout": [Question("", (1,) * 9, 4), Question("", (1,) * 5, 4)], "long": [Question("", (1,), 30)]}
    assert longest(sets, "heldout") == 12
    assert longest(sets, "heldout", "long") == 30


def test_a_digest_tells_prompts_apart() -> None:
    assert Question("a", (1, 2), 1).digest != Question("a", (12,), 1).digest
    assert Question("a", (1, 2), 1).digest == Question("b", (1, 2), 9).digest


def test_the_sets_that_ship() -> None:
    sets = {name: prompts.load(name) for name in prompts.SETS}
    assert {name: len(asked) for name, asked in sets.items()} == {"heldout": 6, "confirm": 6, "long": 1}
    for name, asked in sets.items():
        assert [prompt["id"] for prompt in asked] == [f"{name}/{index}" for index in range(len(asked))]
    texts = [prompt["text"] for asked in sets.values() for prompt in asked]
    assert len(set(texts)) == 13
    assert all(text.strip() for text in texts)


@pytest.mark.parametrize("name", ["heldout", "confirm"])
def test_each_set_has_other_languages_code_and_very_different_lengths(name: str) -> None:
    texts = [prompt["text"] for prompt in prompts.load(name)]
    assert sum(any(ord(letter) > 127 for letter in text) for text in texts) >= 2
    assert any("function" in text or "def " in text for text in texts)
    assert max(map(len, texts)) > 8 * min(map(len, texts))


def test_one_prompt_is_in_another_script() -> None:
    texts = [prompt["text"] for name in prompts.SETS for prompt in prompts.load(name)]
    assert any("CJK" in unicodedata.name(letter, "") for text in texts for letter in text)
