"""The runtime's figures: memory comes back round after round, and the cost of the checks is a figure for each device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.figures import checks, memory
from tests.figures.models import deep_llama, optimised

CPU = torch.device("cpu")


def level(figures: dict[str, Any]) -> bool:
    """Nothing more after the last round than before the first, but what torch keeps once for each process."""
    return all(figures["after"][name] <= figures["after_two"][name] for name in figures["after"]) and all(
        figures["after"][name] == figures["before"][name] for name in ("graphs", "sessions")
    )


def test_a_hundred_rounds_leave_nothing_behind() -> None:
    figures = memory.rounds(memory.ROUNDS, CPU, layers=2)
    assert level(figures), figures
    assert figures["after"] == figures["before"]


@pytest.mark.gpu
def test_a_hundred_rounds_give_the_gpus_memory_back() -> None:
    figures = memory.rounds(memory.ROUNDS, torch.device("cuda", 0))
    # Beside what was there before, cuBLAS keeps a workspace for the stream of captures.
    assert level(figures), figures


def test_a_round_that_keeps_something_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = []

    def keeping(model: Any, *arguments: Any, **named: Any) -> Any:
        handle = optimised(model, *arguments, **named)
        kept.append(handle.session._installation)
        return handle

    monkeypatch.setattr(memory, "optimised", keeping)
    figures = memory.rounds(6, CPU, layers=2)
    assert not level(figures)
    assert figures["after"]["tensors"] > figures["after_two"]["tensors"]


def test_the_cost_of_the_checks_is_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "deep_llama", lambda device: deep_llama(device, 2))
    monkeypatch.setattr(checks, "_REPETITIONS", 1)
    monkeypatch.setattr(checks, "_PAIRS", 1)
    figures = checks.measure(CPU)
    # The difference of two calls may be noise.
    assert min(value for name, value in figures.items() if name != "share_of_checks_with_user_code") > 0
    assert figures["share_with_user_code"] > figures["share_once_a_call"]
