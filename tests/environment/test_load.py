"""A GPU that is busy, capped or hot while something is timed on it: said, and no reason to judge exactness otherwise."""

from __future__ import annotations

import logging
import os

import pynvml
import pytest
from fake_nvml import Board, FakeNvml, Slice

from exactgraph.environment.load import Load, watched
from exactgraph.refusal import UserError

OTHER = os.getpid() + 1


def watch(monkeypatch: pytest.MonkeyPatch, board: Board, uuid: str = "GPU-a") -> Load:
    driver = FakeNvml(board)
    driver.install(monkeypatch)
    with watched(uuid, pause=0) as load:
        assert driver.started == 1
    assert driver.started == 0
    return load


def test_a_quiet_gpu(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    load = watch(monkeypatch, Board("GPU-a"))
    assert load.to_json() == {
        "before": 0,
        "after": 0,
        "others": 0,
        "power_limit_w": 700,
        "power_default_w": 700,
        "slowed": [],
        "noisy": [],
    }
    assert caplog.messages == []


def test_a_cpu_is_not_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeNvml(error=pynvml.NVMLError_Unknown).install(monkeypatch)
    with watched(None) as load:
        pass
    assert load == Load()
    assert load.noisy == []


@pytest.mark.parametrize(
    ("board", "says"),
    [
        (Board("GPU-a", busy=[37, 0]), "other work kept the GPU 37% busy before the timing"),
        (Board("GPU-a", busy=[0, 100]), "other work kept the GPU 100% busy after the timing"),
        (
            Board("GPU-a", processes={os.getpid(): 60, OTHER: 40}),
            "another process used up to 40% of the GPU during the timing",
        ),
        (Board("GPU-a", power_held_ns=[5, 10**12]), "a power cap held the clocks down during the timing"),
        (Board("GPU-a", reasons=pynvml.nvmlClocksEventReasonHwThermalSlowdown), "heat held the clocks down during the timing"),
    ],
)
def test_what_makes_a_timing_noisy(
    board: Board, says: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        load = watch(monkeypatch, board)
    assert load.to_json()["noisy"] == [says]
    assert caplog.messages == [f"GPU GPU-a: {says}."]


@pytest.mark.parametrize(
    "board",
    [
        Board("GPU-a", busy=[3, 5]),  # a desktop
        Board("GPU-a", processes={os.getpid(): 0}),
        Board("GPU-a", processes={OTHER: 90}),  # a container: the driver's process ids are not ours
        Board("GPU-a", reasons=pynvml.nvmlClocksEventReasonGpuIdle),
    ],
)
def test_what_does_not(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    assert watch(monkeypatch, board).noisy == []


def test_a_power_cap_is_said_and_is_noise_only_where_it_bites(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    load = watch(monkeypatch, Board("GPU-a", watts=(400, 700)))
    assert (load.power_limit_w, load.power_default_w, load.noisy) == (400, 700, [])
    assert caplog.messages == ["GPU GPU-a: its power is capped at 400 W of 700 W."]


def test_a_slice_has_the_power_of_its_gpu_and_no_figures_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    board = Board("GPU-a", slices=[Slice("MIG-1", "NVIDIA H200 MIG 1g.18gb", 16, 16384)], watts=(500, 700))
    load = watch(monkeypatch, board, "MIG-1")
    assert (load.before, load.after, load.others, load.power_limit_w) == (None, None, None, 500)
    assert load.noisy == []


def test_what_the_driver_does_not_tell_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    load = watch(monkeypatch, Board("GPU-a", busy=None, watts=None, reasons=None, power_held_ns=None))
    assert load == Load(others=0)


def test_an_error_in_the_block_is_the_blocks_own(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = FakeNvml(Board("GPU-a"))
    driver.install(monkeypatch)
    with pytest.raises(UserError, match=r"^mine$"), watched("GPU-a", pause=0):
        raise UserError("mine")
    assert driver.started == 0
