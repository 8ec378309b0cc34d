"""From a comparison to exact or rejected."""

from __future__ import annotations

import pytest
from trace_makers import compared, trace, with_other_bits

from exactgraph.protocol.compare import Comparison, Difference
from exactgraph.protocol.verdict import judge

EXPECTED = [trace("heldout/0", [5, 6, 7])]
OTHER_BITS = [with_other_bits(EXPECTED[0], 1)]
OTHER_TOKEN = [{**OTHER_BITS[0], "tokens": [5, 4, 7]}]


@pytest.mark.parametrize("claims", ["bit-identical", "token-identical"])
def test_equal_bits_are_exact_whatever_was_claimed(claims: str) -> None:
    assert judge(compared(EXPECTED, EXPECTED), claims) == {"status": "exact", "grade": "bit-identical", "why": None}


def test_a_claim_of_equal_bits_is_rejected_for_other_bits_though_all_tokens_are_equal() -> None:
    verdict = judge(compared(EXPECTED, OTHER_BITS), "bit-identical")
    assert (verdict["status"], verdict["grade"]) == ("rejected", "token-identical")
    assert verdict["why"] == (
        "First logits with other bits at prompt heldout/0, step 1 (the baseline's margin there: 1.5)."
        " The candidate claims equal bits."
    )


def test_a_claim_of_equal_tokens_is_accepted_with_other_bits() -> None:
    assert judge(compared(EXPECTED, OTHER_BITS), "token-identical") == {
        "status": "exact",
        "grade": "token-identical",
        "why": None,
    }


@pytest.mark.parametrize("claims", ["bit-identical", "token-identical"])
def test_another_token_is_rejected_whatever_was_claimed(claims: str) -> None:
    verdict = judge(compared(EXPECTED, OTHER_TOKEN), claims)
    assert (verdict["status"], verdict["grade"]) == ("rejected", None)
    assert verdict["why"] == (
        "First other token at prompt heldout/0, step 1: 4 instead of 6 (the baseline's margin there: 1.5)."
    )


def test_a_candidate_that_varies_is_rejected_although_every_repetition_matched() -> None:
    difference: Difference = {"prompt": "heldout/0", "step": 3, "expected": 5, "got": 6, "margin": 0.5, "kind": "token"}
    varying: Comparison = {
        "matches": 30,
        "of": 30,
        "first_token_difference": difference,
        "first_logits_difference": None,
        "logits_equal": 10,
        "logits_of": 10,
    }
    assert judge(varying, "token-identical")["status"] == "rejected"
