"""A receipt of a protocol that names batches: the real stages on a tiny model, and then the user's own program."""

from __future__ import annotations

import warnings
from typing import Any

import confirmed_key
import pytest
import torch
from confirmed_key import Confirmed
from runtime_outputs import EVERYTHING, assert_same

import exactgraph
from exactgraph.canonical import read_json
from exactgraph.receipts.verify import verify
from exactgraph.runtime.optimize import _context
from exactgraph.stages.place import Place

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(),
    reason="a receipt of a GPU takes timings, which a test cannot rely on; this one is a rehearsal's",
)


@pytest.fixture(scope="module")
def confirmed(tmp_path_factory: pytest.TempPathFactory) -> Confirmed:
    return confirmed_key.make(tmp_path_factory.mktemp("store"), ["C022", "step"], batches=(1, 3))


def test_the_stages_leave_a_receipt_that_verifies(confirmed: Confirmed) -> None:
    result = verify(confirmed.receipt)
    assert result.ok, result.lines
    predicate = read_json(confirmed.receipt)["predicate"]
    assert (predicate["status"], predicate["confirmation"]["confirmed"]) == ("rehearsal", "step")
    served = {
        name: [(found["batch"], found["served"]) for found in told["batches"]]
        for name, told in predicate["candidates"].items()
        if "batches" in told
    }
    assert served == {"null": [(3, False)], "wrong-late": [(3, False)], "C022": [(3, False)], "step": [(3, True)]}
    matched = predicate["confirmation"]["attempts"][-1]
    assert (matched["candidate"], matched["batches"][0]["served"], matched["batches"][0]["why"]) == ("step", True, None)
    # Three sequences in each of three sets, of 6, 6 and 24 tokens.
    comparison = matched["batches"][0]["comparison"]
    assert (comparison["matches"], comparison["of"]) == (9, 9)
    assert comparison["logits_equal"] == comparison["logits_of"] == 3 * (6 + 6 + 24)
    assert [lane["batch"] for lane in Place(confirmed.receipt.parent).plan("step")["decisions"]["lanes"]] == [1, 3]


def test_candidates_are_told_the_same_batches_as_in_the_stages(confirmed: Confirmed) -> None:
    place = Place(confirmed.receipt.parent)
    assert _context(place.protocol(), place.frozen(), torch.device("cpu")).batches == (1, 3)


@pytest.mark.parametrize(("batch", "captured"), [(1, 11), (3, 11), (2, None)])
def test_the_confirmed_batches_are_served_and_others_run_eager(confirmed: Confirmed, batch: int, captured: int | None) -> None:
    model = confirmed.load()

    def ask() -> Any:
        ids = torch.arange(5, 5 + 9 * batch).reshape(batch, 9)
        return model.generate(ids, max_new_tokens=12, do_sample=False, **EVERYTHING)

    expected = ask()
    with warnings.catch_warnings(action="ignore", category=exactgraph.NotOptimizedWarning):
        exactgraph.optimize(model, confirmed.store, require=True)
    try:
        assert_same(ask(), expected)
        call = model.exactgraph.session.last
        if captured is None:
            assert call.refusal.sentence == "Steps are captured for batches of 1, 3; this call has 2 sequences."
        else:
            assert (call.refusal, call.steps.captured, call.steps.eager) == (None, captured, 0)
    finally:
        exactgraph.restore(model)
