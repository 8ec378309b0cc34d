from __future__ import annotations

import logging
import os
import select
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from exactgraph.environment.device import Device, cuda_device
from exactgraph.environment.gpulock import HELD, hold_gpu
from exactgraph.environment.nvml import Gpu
from exactgraph.refusal import UserError

H200 = cuda_device("NVIDIA H200", (9, 0), 132, 143771 << 20)
A100 = cuda_device("NVIDIA A100", (8, 0), 108, 40960 << 20)
PART = cuda_device("NVIDIA H200 MIG 3g.71gb", (9, 0), 60, 70000 << 20)
MACHINE = [
    Gpu(A100, "GPU-a", 0, "GPU-a"),
    Gpu(H200, "GPU-b", 1, "GPU-b"),
    Gpu(H200, "GPU-c", 2, "GPU-c"),
    Gpu(PART, "MIG-1", 3, "GPU-d"),
    Gpu(PART, "MIG-2", 3, "GPU-d"),
]
CHILD = """
import sys
from contextlib import nullcontext
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from test_gpulock import MACHINE
from exactgraph.environment.gpulock import hold_gpu
with hold_gpu(sys.argv[2], lambda: MACHINE, Path(sys.argv[3])) as hold:
    with hold.alone() if sys.argv[4] == "alone" else nullcontext():
        print(hold.uuid, flush=True)
        sys.stdin.readline()
"""


@pytest.fixture(autouse=True)
def no_gpu_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", HELD):
        monkeypatch.delenv(name, raising=False)


class Holder:
    """Another process that holds a GPU, alone or shared, until it is let go."""

    def __init__(self, device: str, locks: Path, how: str = "alone") -> None:
        command = [sys.executable, "-c", CHILD, str(Path(__file__).parent), device, str(locks), how]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def uuid(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def let_go(self) -> None:
        self.process.communicate("\n", timeout=20)


@pytest.fixture
def holders(tmp_path: Path) -> Iterator[list[Holder]]:
    started: list[Holder] = []
    yield started
    for holder in started:
        if holder.process.poll() is None:
            holder.process.kill()
        holder.process.communicate()


def test_a_cpu_needs_no_lock(tmp_path: Path) -> None:
    with hold_gpu("cpu-x86_64", lambda: pytest.fail("asked the driver"), tmp_path / "locks") as hold:
        assert hold.uuid is None
    assert not (tmp_path / "locks").exists()


def test_the_variables_name_the_gpu_while_it_is_held(tmp_path: Path) -> None:
    with hold_gpu(H200.id, lambda: MACHINE, tmp_path) as hold:
        assert hold.uuid == "GPU-b"
        assert os.environ["CUDA_VISIBLE_DEVICES"] == os.environ[HELD] == "GPU-b"
    assert not {"CUDA_VISIBLE_DEVICES", HELD, "CUDA_DEVICE_ORDER"} & set(os.environ)


def test_jobs_spread_over_identical_gpus_and_the_third_waits(
    tmp_path: Path, holders: list[Holder], caplog: pytest.LogCaptureFixture
) -> None:
    holders += [Holder(H200.id, tmp_path), Holder(H200.id, tmp_path)]
    assert {holder.uuid() for holder in holders} == {"GPU-b", "GPU-c"}
    third = Holder(H200.id, tmp_path)
    holders.append(third)
    time.sleep(1.5)
    assert third.process.poll() is None
    holders[0].let_go()
    assert third.uuid() in {"GPU-b", "GPU-c"}
    with caplog.at_level(logging.WARNING), pytest.raises(TimeoutError), alarm(2), hold_gpu(H200.id, lambda: MACHINE, tmp_path):
        pytest.fail("both are held")
    assert len(caplog.messages) == 2
    assert any(f"held by process {third.process.pid}" in message for message in caplog.messages)


def test_recordings_share_a_gpu_and_timing_waits_for_them(tmp_path: Path, holders: list[Holder]) -> None:
    holders += [Holder(A100.id, tmp_path, "shared"), Holder(A100.id, tmp_path, "shared")]
    assert [holder.uuid() for holder in holders] == ["GPU-a", "GPU-a"]
    timing = Holder(A100.id, tmp_path)
    holders.append(timing)
    time.sleep(1.5)
    holders[0].let_go()
    assert not select.select([timing.process.stdout], [], [], 1)[0]
    holders[1].let_go()
    assert timing.uuid() == "GPU-a"
    with pytest.raises(TimeoutError), alarm(2), hold_gpu(A100.id, lambda: MACHINE, tmp_path):
        pytest.fail("it is held alone")


def test_a_free_gpu_comes_before_a_shared_one(tmp_path: Path, holders: list[Holder]) -> None:
    holders.append(Holder(H200.id, tmp_path, "shared"))
    assert holders[0].uuid() == "GPU-b"
    with hold_gpu(H200.id, lambda: MACHINE, tmp_path) as hold:
        assert hold.uuid == "GPU-c"


def test_a_killed_holder_leaves_no_lock(tmp_path: Path, holders: list[Holder]) -> None:
    holders.append(Holder(A100.id, tmp_path))
    assert holders[0].uuid() == "GPU-a"
    holders[0].process.kill()
    holders[0].process.wait()
    with alarm(5), hold_gpu(A100.id, lambda: MACHINE, tmp_path) as hold:
        assert hold.uuid == "GPU-a"


def test_slices_of_one_gpu_are_held_apart(tmp_path: Path, holders: list[Holder]) -> None:
    holders.append(Holder(PART.id, tmp_path))
    assert holders[0].uuid() == "MIG-1"
    with alarm(5), hold_gpu(PART.id, lambda: MACHINE, tmp_path) as hold:
        assert hold.uuid == os.environ["CUDA_VISIBLE_DEVICES"] == "MIG-2"


@pytest.mark.parametrize(
    ("setting", "device", "expected"), [("2,1", H200, "GPU-c"), ("GPU-c", H200, "GPU-c"), ("MIG-2", PART, "MIG-2")]
)
def test_a_schedulers_choice_stays(
    setting: str, device: Device, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", setting)
    with hold_gpu(device.id, lambda: MACHINE, tmp_path) as hold:
        assert hold.uuid == expected
        assert os.environ["CUDA_VISIBLE_DEVICES"] == setting
        assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == setting


def test_a_schedulers_first_gpu_of_another_kind_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with pytest.raises(UserError, match=f"belongs on {H200.id}, but CUDA_VISIBLE_DEVICES=0,1 gives {A100.id}"):  # noqa: SIM117
        with hold_gpu(H200.id, lambda: MACHINE, tmp_path):
            pass
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(UserError, match="gives no GPU"), hold_gpu(H200.id, lambda: MACHINE, tmp_path):
        pass


def test_children_of_a_holder_do_not_lock_again(tmp_path: Path, holders: list[Holder]) -> None:
    with hold_gpu(A100.id, lambda: MACHINE, tmp_path) as hold:
        holders.append(Holder(A100.id, tmp_path))
        with alarm(15):
            assert holders[0].uuid() == hold.uuid
        with alarm(2), hold_gpu(A100.id, lambda: MACHINE, tmp_path) as again:
            assert again.uuid == hold.uuid
        assert os.environ[HELD] == hold.uuid


def test_every_user_may_lock(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        with hold_gpu(A100.id, lambda: MACHINE, tmp_path / "locks"):
            pass
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "locks").stat().st_mode) == 0o1777
    assert stat.S_IMODE((tmp_path / "locks" / "GPU-a.lock").stat().st_mode) == 0o666


class alarm:
    """Raise TimeoutError in the block after some seconds."""

    def __init__(self, seconds: int) -> None:
        self.seconds = seconds

    def __enter__(self) -> None:
        def ring(*_: object) -> None:
            raise TimeoutError

        self.before = signal.signal(signal.SIGALRM, ring)
        signal.alarm(self.seconds)

    def __exit__(self, *_: object) -> None:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, self.before)
