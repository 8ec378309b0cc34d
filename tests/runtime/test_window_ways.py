"""Every way to encode windows and every mode to decode them, beside eager, with real graphs where there is a GPU."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from encdec_models import make, question
from test_encdec_step import attention, opened  # noqa: F401

from exactgraph.protocol.window_ways import decide, equal, grade, modes, summary, ways
from exactgraph.protocol.windows import Window
from exactgraph.runtime.ahead import Ahead
from exactgraph.runtime.attention import preferred
from exactgraph.runtime.precompute import encode_as_generate, same_bits
from exactgraph.stages.window_runs import digests
from exactgraph.stages.windows import AskedWindows

ASKED = {"encoder_batch": 4, "device_mib": 1, "parallel": 2}
TOKENS = 24
ONE_CALL = {"force_unique_generate_call": True}


def windows_of(model: Any, count: int) -> list[Any]:
    """Windows of noise, all begun with one token."""
    return [
        Window(f"heldout/{seed}", (3,), TOKENS, question(model, seed=seed)["input_features"].cpu(), f"{seed}", ONE_CALL)
        for seed in range(count)
    ]


def test_ways_and_modes_beside_eager(device: torch.device, attention: str) -> None:  # noqa: F811
    model = make("whisper", device)
    with opened(model, attention) as session:
        asked = AskedWindows(session, {"heldout": windows_of(model, 3)}, {"windows": ASKED}, attention)
        # What it compares is not what it takes seconds of.
        assert asked.record["seconds"] is None
        asked.time(2)
    record = asked.record
    print(json.dumps(summary(ASKED, record)))
    assert record["refused"] == {}
    found = record["sets"]["heldout"]
    assert len({*found["states"]["eager"]}) == len({tuple(tokens) for tokens in found["expected"]}) == 4
    assert {len(tokens) for tokens in found["expected"]} == {TOKENS}
    assert grade(record, "eager") == grade(record, "captured") == "bit-identical"
    assert equal(record, "eager", "sequential") == (4, 4)
    assert "sequential" not in record["not_captured"]
    assert set(record["seconds"]) == {*ways(ASKED), *modes(ASKED)}
    assert all(len(taken) == 2 and min(taken) > 0 for taken in record["seconds"].values())
    decision = decide(ASKED, record, record)
    exact = {way: taken for way, taken in record["seconds"].items() if way in ways(ASKED) and grade(record, way)}
    assert decision["encoder"] == min(exact, key=lambda way: sum(exact[way]))


@pytest.mark.parametrize("encoder", ["captured", "batched", "eager"])
def test_precompute_gives_the_states_that_were_compared(device: torch.device, attention: str, encoder: str) -> None:  # noqa: F811
    model = make("whisper", device)
    with opened(model, attention) as session:
        record = AskedWindows(session, {"heldout": windows_of(model, 4)}, {"windows": ASKED}, attention).record
    found = {"encoder": encoder, "grade": grade(record, encoder), "mode": "parallel"}
    inputs = [question(model, seed=seed) for seed in range(6)]
    outputs = Ahead(model, found, ASKED, attention).precompute(inputs)
    assert digests(outputs)[:4] == record["sets"]["heldout"]["states"][encoder]
    # What is left over of a batch has eager's bits.
    with torch.no_grad(), preferred(attention):
        for window, states in list(zip(inputs, outputs, strict=True))[4:]:
            assert same_bits(states[0], encode_as_generate(model, window))
