"""From a comparison to a verdict. One place decides, for validation and confirmation alike."""

from __future__ import annotations

from typing import Any

from exactgraph.protocol.compare import Comparison, first_difference, grade, sentence
from exactgraph.protocol.grades import BIT_IDENTICAL

EXACT = "exact"
REJECTED = "rejected"


def judge(comparison: Comparison, claims: str) -> dict[str, Any]:
    """``{"status": "exact" | "rejected", "grade", "why"}``.

    Token IDs must all be equal. A candidate that claims equal bits must also deliver them: its construction is what makes it
    exact on prompts that nobody tried, and other bits prove that the construction is not what it claims.
    """
    reached = grade(comparison)
    difference = first_difference(comparison)
    if reached is None or (claims == BIT_IDENTICAL and reached != BIT_IDENTICAL):
        assert difference is not None
        claim = " The candidate claims equal bits." if reached is not None else ""
        return {"status": REJECTED, "grade": reached, "why": f"{sentence(difference).capitalize()}.{claim}"}
    return {"status": EXACT, "grade": reached, "why": None}
