"""A receipt of a speech model: the real stages on a tiny Whisper, and then windows in the user's own program."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import confirmed_key
import pytest
import torch
from confirmed_key import WINDOWS, Confirmed
from runtime_outputs import assert_same_bits

import exactgraph
from exactgraph.canonical import read_json
from exactgraph.guidance.windows import Windows
from exactgraph.receipts.verify import verify
from exactgraph.runtime.ahead import Ahead
from exactgraph.runtime.precompute import encode_as_generate
from exactgraph.sources import windows as stored

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(),
    reason="a receipt of a GPU takes timings, which a test cannot rely on; this one is a rehearsal's",
)
ASKED = {"max_new_tokens": 12, "do_sample": False, "force_unique_generate_call": True}


@pytest.fixture(scope="module")
def confirmed(tmp_path_factory: pytest.TempPathFactory) -> Confirmed:
    return confirmed_key.make(tmp_path_factory.mktemp("store"), ["encdec-step"], speech=confirmed_key.SPEECH)


@pytest.fixture
def model(confirmed: Confirmed) -> Iterator[Any]:
    model = confirmed.load()
    yield model
    exactgraph.restore(model)


@pytest.fixture
def heard(confirmed: Confirmed) -> list[dict[str, torch.Tensor]]:
    """Five windows: a batch of three and two more."""
    return [{"input_features": torch.from_numpy(one[None])} for one in stored.read(confirmed.model, "confirm")[:5]]


def optimize(model: Any, confirmed: Confirmed) -> Ahead:
    with warnings.catch_warnings(action="ignore", category=exactgraph.NotOptimizedWarning):
        exactgraph.optimize(model, confirmed.store, require=True)
    ahead: Ahead = model.exactgraph.ahead
    return ahead


def states_of(model: Any, heard: list[dict[str, torch.Tensor]]) -> list[torch.Tensor]:
    with torch.no_grad():
        return [encode_as_generate(model, window) for window in heard]


def test_the_stages_leave_a_receipt_that_verifies(confirmed: Confirmed) -> None:
    result = verify(confirmed.receipt)
    assert result.ok, result.lines
    predicate = read_json(confirmed.receipt)["predicate"]
    assert (predicate["status"], predicate["confirmation"]["confirmed"]) == ("rehearsal", "encdec-step")
    told = predicate["candidates"]["encdec-step"]["windows"]
    assert told["encoder"]["captured"]["grade"] == "bit-identical"
    assert set(predicate["confirmation"]["windows"]) == {"encoder", "grade", "mode"}


def test_what_is_confirmed_is_on_after_optimize(
    confirmed: Confirmed, model: Any, heard: list[dict[str, torch.Tensor]], caplog: pytest.LogCaptureFixture
) -> None:
    expected = [model.generate(**window, **ASKED) for window in heard]
    ahead = optimize(model, confirmed)
    decision = read_json(confirmed.receipt)["predicate"]["confirmation"]["windows"]
    assert (ahead.encoder, ahead.grade) == (decision["encoder"], decision["grade"])
    assert f"windows   {ahead!r}" in repr(model.exactgraph)
    caplog.clear()
    with caplog.at_level(logging.WARNING, "exactgraph"):
        outputs = exactgraph.precompute(model, heard)
    assert not caplog.records
    assert outputs.on_device == len(heard)
    for window, states, answer in zip(heard, outputs, expected, strict=True):
        # With another window's features, so that the answer can only come from the given output.
        other = {"input_features": torch.zeros_like(window["input_features"])}
        assert_same_bits(model.generate(**other, encoder_outputs=states, **ASKED), answer)
        assert model.exactgraph.session.last.steps.captured == 11


@pytest.mark.parametrize("encoder", ["captured", "batched", "eager"])
def test_each_way_gives_every_window_its_own_output(
    confirmed: Confirmed, model: Any, heard: list[dict[str, torch.Tensor]], encoder: str
) -> None:
    ahead = Ahead(model, {"encoder": encoder, "grade": None, "mode": "sequential"}, WINDOWS, "default")
    for states, expected in zip(ahead.precompute(heard), states_of(model, heard), strict=True):
        torch.testing.assert_close(states[0], expected)
    graphs = ahead._captured._capturer.graphs if ahead._captured else 0
    assert graphs == (1 if encoder == "captured" else 0)
    assert ahead.batch == (3 if encoder == "batched" else 1)


def test_without_a_receipt_eager_takes_one_window_at_a_time_and_says_so(
    model: Any, heard: list[dict[str, torch.Tensor]], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "exactgraph"):
        outputs = exactgraph.precompute(model, heard)
    assert "no receipt that is installed speaks of windows" in caplog.text
    for states, expected in zip(outputs, states_of(model, heard), strict=True):
        assert_same_bits(states[0], expected)


def test_a_changed_model_is_encoded_by_eager(
    confirmed: Confirmed, model: Any, heard: list[dict[str, torch.Tensor]], caplog: pytest.LogCaptureFixture
) -> None:
    optimize(model, confirmed)
    exactgraph.precompute(model, heard)
    layer = model.model.encoder.layers[0].fc1
    layer.weight = torch.nn.Parameter(layer.weight.detach() * 2, requires_grad=False)
    with caplog.at_level(logging.WARNING, "exactgraph"):
        outputs = exactgraph.precompute(model, heard)
    assert "The encoder runs eager, one window at a time: The model is not what it was at capture" in caplog.text
    for states, expected in zip(outputs, states_of(model, heard), strict=True):
        assert_same_bits(states[0], expected)


def test_bits_that_the_receipt_promises_are_checked_in_the_first_call(
    model: Any, heard: list[dict[str, torch.Tensor]], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = Ahead(model, {"encoder": "captured", "grade": "bit-identical", "mode": "sequential"}, WINDOWS, "default")
    assert ahead._captured is not None
    own = ahead._captured
    monkeypatch.setattr(ahead, "_captured", lambda inputs: own(inputs) * 2)
    with caplog.at_level(logging.WARNING, "exactgraph"):
        outputs = ahead.precompute(heard)
    assert "has other bits than eager's" in caplog.text
    for states, expected in zip(outputs, states_of(model, heard), strict=True):
        assert_same_bits(states[0], expected)


class Alone:
    """Windows that do not depend on each other; the fourth is tried twice where ``twice`` says so."""

    def __init__(self, twice: bool = False, lengths: tuple[int, ...] = (1,)) -> None:
        self.twice, self.lengths = twice, lengths

    def prompt(self, index: int, kept: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.tensor([[0, 17, 21][: self.lengths[index % len(self.lengths)]]])

    def ends(self, index: int) -> Sequence[int]:
        return ()

    def keep(self, index: int, generated: torch.Tensor) -> torch.Tensor:
        return generated

    def again(self, index: int, generated: torch.Tensor, tries: int) -> bool:
        return self.twice and index == 3 and tries < 2


@pytest.mark.parametrize(
    ("script", "asked", "rows"),
    [
        (Alone(), {}, [2, 2, 1]),
        (Alone(twice=True), {}, [2, 2, 1, 1]),
        (Alone(lengths=(1, 2)), {}, [1, 1, 1, 1, 1]),
        (Alone(lengths=(2, 2, 1, 3)), {}, [2, 1, 1, 1]),
        (Alone(), {"do_sample": True}, [1, 1, 1, 1, 1]),
    ],
)
def test_windows_run_by_the_confirmed_mode(
    confirmed: Confirmed,
    model: Any,
    heard: list[dict[str, torch.Tensor]],
    script: Alone,
    asked: dict[str, Any],
    rows: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arguments = {**ASKED, **asked}
    torch.manual_seed(0)
    expected = Windows(model, script, (), arguments).sequential(heard)
    optimize(model, confirmed).together = 2
    calls: list[int] = []
    own = model.generate

    def counted(**kwargs: Any) -> Any:
        calls.append(len(kwargs["decoder_input_ids"]))
        return own(**kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(model, "generate", counted)
        torch.manual_seed(0)
        got = Windows(model, script, (), arguments).run(heard, pad=0)
    assert sorted(calls) == sorted(rows)
    assert len(got) == len(heard)
    if not asked:
        for ours, answer in zip(got, expected, strict=True):
            assert_same_bits(ours, answer)


def test_a_changed_model_has_no_windows_in_one_call(confirmed: Confirmed, model: Any) -> None:
    ahead = optimize(model, confirmed)
    ahead.together = 2
    assert ahead.in_one_call() == 2
    model.proj_out.weight = torch.nn.Parameter(model.proj_out.weight.detach().clone(), requires_grad=False)
    assert ahead.in_one_call() == 1


def test_windows_run_one_after_the_other_where_nothing_is_confirmed(model: Any, heard: list[dict[str, torch.Tensor]]) -> None:
    windows = Windows(model, Alone(), (), ASKED)
    for ours, answer in zip(windows.run(heard, pad=0), windows.sequential(heard), strict=True):
        assert_same_bits(ours, answer)
