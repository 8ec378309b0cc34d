"""What later stages depend on, and what they must not see."""

from __future__ import annotations

from exactgraph.workflow.handoff import order_of, reference_of, skips_of

FROZEN = {"status": "frozen", "attention": "flash", "weights_digest": "w", "traces_digest": "t"}
REST = {"code": "a", "sets": {}, "texts": {}}
RANKING = {"code": "a", "status": None, "order": ["wrong-late", "step"], "candidates": {"C022": {"code": "1"}}}
PLANS = {"wrong-late": {"code": "2"}, "step": {"code": "3"}}


def test_the_reference_changes_with_the_traces_and_not_with_the_code() -> None:
    reference = reference_of({**FROZEN, **REST})
    assert reference_of({**FROZEN, **REST, "code": "b", "attempts": [1]}) == reference
    for name in FROZEN:
        assert reference_of({**FROZEN, **REST, name: "x"}) != reference


def test_the_order_changes_with_its_candidates_and_not_with_others() -> None:
    order = order_of(RANKING, PLANS)
    assert [entry["candidate"] for entry in order["order"]] == ["wrong-late", "step"]
    assert order_of({**RANKING, "code": "b", "candidates": {"C022": {"code": "9"}}}, PLANS) == order
    assert order_of(RANKING, {**PLANS, "step": {"code": "4"}}) != order
    assert order_of({**RANKING, "order": ["step"]}, PLANS) != order


def test_the_skips_change_with_their_names_and_not_with_the_figures() -> None:
    skips = skips_of({"skip": {"static": "It touches 0.2%.", "C022": "It touches 0.3%."}})
    assert skips_of({"code": "b", "skip": {"C022": "It touches 0.4%.", "static": "It touches 0.1%."}}) == skips
    assert skips_of({"skip": {"C022": "It touches 0.4%."}}) != skips
