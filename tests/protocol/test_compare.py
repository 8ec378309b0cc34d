"""Comparison of traces: what counts as equal, and where the first difference is said to be."""

from __future__ import annotations

from typing import Any

import pytest
from trace_makers import compared, trace, with_other_bits

from exactgraph.protocol.compare import compare_sets, first_difference, grade, sentence, token_difference

EXPECTED = [trace("heldout/0", [5, 6, 7]), trace("heldout/1", [8, 9, 10], [0.25, 0.125, 2.0])]


def test_equal_traces_are_bit_identical() -> None:
    comparison = compared(EXPECTED, EXPECTED)
    assert (comparison["matches"], comparison["of"]) == (2, 2)
    assert (comparison["logits_equal"], comparison["logits_of"]) == (6, 6)
    assert first_difference(comparison) is None
    assert grade(comparison) == "bit-identical"


def test_one_other_token_is_found_with_its_place_and_the_baselines_margin() -> None:
    got = [EXPECTED[0], {**EXPECTED[1], "tokens": [8, 3, 10], "margins": [9.0, 9.0, 9.0]}]
    comparison = compared(EXPECTED, got)
    difference = comparison["first_token_difference"]
    assert difference == {"prompt": "heldout/1", "step": 1, "expected": 9, "got": 3, "margin": 0.125, "kind": "token"}
    assert (comparison["matches"], comparison["of"]) == (1, 2)
    assert grade(comparison) is None
    assert sentence(difference) == (
        "first other token at prompt heldout/1, step 1: 3 instead of 9 (the baseline's margin there: 0.125)"
    )


def test_other_bits_behind_equal_tokens_are_token_identical() -> None:
    got = [EXPECTED[0], with_other_bits(EXPECTED[1], 2)]
    comparison = compared(EXPECTED, got)
    assert comparison["matches"] == comparison["of"] == 2
    assert comparison["logits_equal"] == comparison["logits_of"] - 1
    difference = first_difference(comparison)
    assert difference is not None
    assert (difference["prompt"], difference["step"], difference["kind"]) == ("heldout/1", 2, "logits")
    assert grade(comparison) == "token-identical"
    assert sentence(difference).startswith("first logits with other bits at prompt heldout/1, step 2")


def test_a_token_is_named_before_the_logits_that_led_to_it() -> None:
    got = [with_other_bits(EXPECTED[0], 0), {**EXPECTED[1], "tokens": [8, 9, 11]}]
    difference = first_difference(compared(EXPECTED, got))
    assert difference is not None
    assert (difference["kind"], difference["prompt"]) == ("token", "heldout/1")


@pytest.mark.parametrize(("tokens", "want", "got"), [([5, 6], 7, None), ([5, 6, 7, 8], None, 8), ([], 5, None)])
def test_an_answer_of_another_length_is_no_match(tokens: list[int], want: int | None, got: int | None) -> None:
    difference = token_difference(EXPECTED[0], tokens)
    assert difference is not None
    assert (difference["kind"], difference["expected"], difference["got"]) == ("length", want, got)
    assert difference["step"] == min(3, len(tokens))
    comparison = compared(EXPECTED[:1], [trace("heldout/0", tokens)])
    assert comparison["matches"] == 0
    assert comparison["logits_of"] == max(3, len(tokens))
    assert grade(comparison) is None


def test_the_first_of_two_differences_is_kept() -> None:
    got = [{**answer, "tokens": [1, 1, 1]} for answer in EXPECTED]
    difference = first_difference(compared(EXPECTED, got))
    assert difference is not None
    assert (difference["prompt"], difference["step"]) == ("heldout/0", 0)


def test_only_the_sets_that_were_asked_are_compared() -> None:
    long = [trace("long/0", [1, 2, 3, 4])]
    comparison = compare_sets({"heldout": EXPECTED, "long": long}, {"long": long})
    assert (comparison["of"], comparison["logits_of"]) == (1, 4)


def test_nothing_compared_has_no_grade() -> None:
    assert grade(compare_sets({"heldout": EXPECTED}, {})) is None


@pytest.mark.parametrize("got", [EXPECTED[:1], EXPECTED[::-1], [EXPECTED[0], trace("heldout/7", [8, 9, 10])]])
def test_answers_to_other_prompts_are_a_fault_not_a_difference(got: list[dict[str, Any]]) -> None:
    with pytest.raises(ValueError, match="other prompts"):
        compared(EXPECTED, got)
