"""Windows one after the other, whose prompts depend on earlier answers, and many at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from encdec_models import VOCABULARY, make, question
from plain_processors import PlainMonotonic
from runtime_outputs import assert_same_bits, steps_of
from test_encdec_step import attention, opened  # noqa: F401
from transformers import LogitsProcessor
from transformers.modeling_outputs import BaseModelOutput

from exactgraph.guidance.device import OnDevice
from exactgraph.guidance.modes import compare_modes
from exactgraph.guidance.processors import Monotonic
from exactgraph.guidance.windows import Windows
from exactgraph.refusal import UserError
from exactgraph.runtime.rows import alike, together

TIMES = (100, 299)


class Looking:
    """Looks back: the last three kept tokens are the next prompt. Looks ahead: times from 250 on end a window.

    A window is tried a second time where ``twice`` says so.
    """

    def __init__(self, device: torch.device, twice: Sequence[int] = ()) -> None:
        self.device = device
        self.twice = twice
        self.generated: list[torch.Tensor] = []

    def prompt(self, index: int, kept: Sequence[torch.Tensor]) -> torch.Tensor:
        start = torch.tensor([[3]], device=self.device)
        return torch.cat([start, kept[-1][:, -3:]], dim=1) if kept else start

    def ends(self, index: int) -> Sequence[int]:
        return range(250, 300)

    def keep(self, index: int, generated: torch.Tensor) -> torch.Tensor:
        return generated[:, : max(1, generated.shape[1] - 2)]

    def again(self, index: int, generated: torch.Tensor, tries: int) -> bool:
        self.generated.append(generated)
        return index in self.twice and tries < 2


class Alone(Looking):
    """Windows that do not depend on each other; prompts have other lengths."""

    def prompt(self, index: int, kept: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.tensor([[3, 17, 21, 30][: 1 + index % 3]], device=self.device)

    def keep(self, index: int, generated: torch.Tensor) -> torch.Tensor:
        return generated


class Eager:
    """A model whose ``generate`` is the untouched one."""

    def __init__(self, session: Any) -> None:
        self.generate = session.eager


SETTINGS = {"max_new_tokens": 14, "do_sample": False, "pad_token_id": 0}


@pytest.mark.parametrize("family", ["t5", "frames"])
def test_windows_in_sequence_have_eagers_tokens(device: torch.device, attention: str, family: str) -> None:  # noqa: F811
    model = make(family, device)
    inputs = [question(model, seed=seed) for seed in range(4)]
    with opened(model, attention) as session:
        answers = []
        plain: Sequence[LogitsProcessor] = [PlainMonotonic(*TIMES, {3})]
        ours = [OnDevice([Monotonic(*TIMES, {3}, VOCABULARY, device)])]
        for target, processors in ((Eager(session), plain), (model, plain), (Eager(session), ours), (model, ours)):
            windows = Windows(target, Looking(device, twice=(1, 3)), processors, SETTINGS)
            answers.append(windows.sequential(inputs))
            captured, eager = steps_of(session) if target is model else (1, 0)
            assert captured
            assert not eager
        for answer in answers[1:]:
            assert len(answer) == len(inputs)
            for got, expected in zip(answer, answers[0], strict=True):
                assert_same_bits(got, expected)


def test_a_second_try_has_no_memory_of_the_first(device: torch.device) -> None:
    model = make("t5", device)
    script = Looking(device, twice=(0, 1))
    Windows(model, script, [OnDevice([Monotonic(*TIMES, {3}, VOCABULARY, device)])], SETTINGS).sequential(
        [question(model, seed=seed) for seed in range(2)]
    )
    first, second, third, fourth = script.generated
    assert_same_bits(first, second)
    assert_same_bits(third, fourth)


def test_windows_in_parallel_are_a_batch_of_eagers(device: torch.device) -> None:
    model = make("t5", device)
    inputs = [question(model, seed=seed) for seed in range(5)]
    windows = Windows(model, Alone(device), (), SETTINGS)
    got = windows.parallel(inputs, batch=2, pad=0)
    assert len(got) == 5
    # Batches have other bits on a GPU, where only the gate can say whether tokens stay the same.
    if device.type == "cpu":
        for ours, expected in zip(got, windows.sequential(inputs), strict=True):
            assert_same_bits(ours, expected)


def test_a_batch_has_one_set_of_ends(device: torch.device) -> None:
    class Other(Alone):
        def ends(self, index: int) -> Sequence[int]:
            return [250 + index]

    model = make("t5", device)
    with pytest.raises(UserError, match="end with different ids"):
        Windows(model, Other(device), (), SETTINGS).parallel([question(model, seed=seed) for seed in range(2)], 2, 0)


def test_windows_that_one_call_can_have() -> None:
    one, longer = torch.zeros(1, 4), torch.zeros(1, 5)
    encoded = BaseModelOutput(last_hidden_state=torch.ones(1, 3, 2))
    first, second = ({"input_ids": one + value, "style": "calm", "encoder_outputs": encoded} for value in (1, 2))
    assert alike([first, second])
    joined = together([first, second])
    assert joined["input_ids"].tolist() == [[1.0] * 4, [2.0] * 4]
    assert (joined["style"], joined["encoder_outputs"].last_hidden_state.shape) == ("calm", (2, 3, 2))
    for other in ({"style": "wild"}, {"input_ids": longer}, {"mask": one}):
        assert not alike([first, {**second, **other}])
    assert not alike([{"input_ids": one, "own": object()}] * 2)
    with pytest.raises(UserError, match="only where they have the same style"):
        together([first, {**second, "style": "wild"}])


@pytest.mark.parametrize(("times", "faster"), [((0.0, 2.0, 10.0, 13.0), "sequential"), ((0.0, 4.0, 10.0, 11.0), "parallel")])
def test_the_faster_way_is_measured(device: torch.device, times: tuple[float, ...], faster: str) -> None:
    model = make("t5", device)
    clock = iter(times)
    windows = Windows(model, Alone(device), (), SETTINGS)
    found = compare_modes(windows, [question(model, seed=seed) for seed in range(3)], 2, 0, lambda: next(clock))
    assert found["sequential_s"] == times[1] - times[0]
    assert found["parallel_s"] == times[3] - times[2]
    assert (found["faster"], found["of"]) == (faster, 3)
    if device.type == "cpu":
        assert found["equal"] == 3
