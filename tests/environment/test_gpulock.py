from __future__ import annotations

import fcntl
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
from exactgraph.environment.gpulock import HELD, hold_gpu, only
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
    if sys.argv[4] == "asked":
        print(hold.uuid, flush=True)
        sys.stdin.readline()
    with nullcontext() if sys.argv[4] == "shared" else hold.alone():
        print(hold.uuid, flush=True)
        sys.stdin.readline()
"""


@pytest.fixture(autouse=True)
def no_gpu_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", HELD):
        monkeypatch.delenv(name, raising=False)


class Holder:
    """Another process that holds a GPU until it is let go: ``alone``, ``shared``, or shared and alone once it is ``asked``."""

    def __init__(self, device: str, locks: Path, how: str = "alone") -> None:
        command = [sys.executable, "-c", CHILD, str(Path(__file__).parent), device, str(locks), how]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def uuid(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def say(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def let_go(self) -> None:
        self.process.communicate("\n", timeout=20)


def until_closed(turnstile: Path) -> None:
    """Wait until somebody who is to have the GPU alone has closed its turnstile."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if turnstile.exists():
            with turnstile.open() as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return
        time.sleep(0.05)
    pytest.fail(f"nobody closed {turnstile}")


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
    ("setting", "device", "expected"), [("2", H200, "GPU-c"), ("GPU-c", H200, "GPU-c"), ("MIG-2", PART, "MIG-2")]
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


def test_jobs_spread_over_the_gpus_of_a_choice_and_over_no_others(
    tmp_path: Path, holders: list[Holder], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,2,1")
    holders.append(Holder(H200.id, tmp_path, "shared"))
    assert holders[0].uuid() == "GPU-c"
    with hold_gpu(H200.id, lambda: MACHINE, tmp_path) as hold:
        assert hold.uuid == os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-b"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,2,1"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,2")
    with hold_gpu(H200.id, lambda: MACHINE, tmp_path) as hold:
        assert hold.uuid == "GPU-c", "one that others share, not one that was not given"


def test_a_choice_without_the_jobs_device_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,3")
    with pytest.raises(UserError, match=f"belongs on {H200.id}, but CUDA_VISIBLE_DEVICES=0,3 gives {A100.id}, {PART.id}"):  # noqa: SIM117
        with hold_gpu(H200.id, lambda: MACHINE, tmp_path):
            pass
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(UserError, match="gives no GPU"), hold_gpu(H200.id, lambda: MACHINE, tmp_path):
        pass


def test_a_pinned_job_takes_a_gpu_of_its_pins_alone(
    tmp_path: Path, holders: list[Holder], monkeypatch: pytest.MonkeyPatch
) -> None:
    with hold_gpu(H200.id, lambda: MACHINE, tmp_path, ["2"]) as hold:
        assert hold.uuid == os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-c"
    holders.append(Holder(H200.id, tmp_path, "shared"))
    assert holders[0].uuid() == "GPU-b"
    with hold_gpu(H200.id, lambda: MACHINE, tmp_path, ["1"]) as hold:
        assert hold.uuid == "GPU-b", "shared, though another one is free"
    with hold_gpu(H200.id, lambda: MACHINE, tmp_path, ["1", "GPU-c"]) as hold:
        assert hold.uuid == "GPU-c"
    with pytest.raises(UserError, match=f"but the slot's visible: 0 gives {A100.id}"):  # noqa: SIM117
        with hold_gpu(H200.id, lambda: MACHINE, tmp_path, ["0"]):
            pass
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    with pytest.raises(UserError, match="but CUDA_VISIBLE_DEVICES=1 with the slot's visible: 2 gives no GPU"):  # noqa: SIM117
        with hold_gpu(H200.id, lambda: MACHINE, tmp_path, ["2"]):
            pass


def test_a_pinned_probe_sees_the_gpus_of_its_slot_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with only(["2,1"], lambda: MACHINE):
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-b,GPU-c"
    assert "CUDA_VISIBLE_DEVICES" not in os.environ
    for pins, read in ((None, MACHINE), (["0"], [])):
        with only(pins, lambda read=read: read):
            assert "CUDA_VISIBLE_DEVICES" not in os.environ
    with pytest.raises(UserError, match="the slot's visible: 7 names no GPU of this machine"), only(["7"], lambda: MACHINE):
        pass
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with only(["0"], lambda: MACHINE):
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "", "a rehearsal was asked for"


def test_jobs_that_keep_coming_do_not_hold_up_who_waits_to_be_alone(tmp_path: Path, holders: list[Holder]) -> None:
    first = Holder(A100.id, tmp_path, "shared")
    holders.append(first)
    assert first.uuid() == "GPU-a"
    timing = Holder(A100.id, tmp_path, "alone")
    holders.append(timing)
    until_closed(tmp_path / "GPU-a.turn")
    # Without the turnstile these would come on beside the first, and the timing would wait for them too.
    late = [Holder(A100.id, tmp_path, "shared") for _ in range(2)]
    holders += late
    assert not select.select([holder.process.stdout for holder in (timing, *late)], [], [], 2.5)[0]
    first.let_go()
    assert timing.uuid() == "GPU-a"
    assert not select.select([holder.process.stdout for holder in late], [], [], 1)[0]
    timing.let_go()
    assert [holder.uuid() for holder in late] == ["GPU-a", "GPU-a"]


def test_two_that_wait_to_be_alone_have_their_turns(tmp_path: Path, holders: list[Holder]) -> None:
    first = Holder(A100.id, tmp_path, "shared")
    holders.append(first)
    assert first.uuid() == "GPU-a"
    # Both share it before they ask.
    pair = [Holder(A100.id, tmp_path, "asked"), Holder(A100.id, tmp_path, "asked")]
    holders += pair
    assert [holder.uuid() for holder in pair] == ["GPU-a", "GPU-a"]
    for holder in pair:
        holder.say()
    until_closed(tmp_path / "GPU-a.turn")
    first.let_go()
    (one,), _, _ = select.select([holder.process.stdout for holder in pair], [], [], 20)
    assert not select.select([holder.process.stdout for holder in pair if holder.process.stdout is not one], [], [], 1)[0]
    for holder in sorted(pair, key=lambda holder: holder.process.stdout is not one):
        assert holder.uuid() == "GPU-a"
        holder.let_go()


def test_who_waited_to_be_alone_and_was_killed_leaves_the_way_open(tmp_path: Path, holders: list[Holder]) -> None:
    holders.append(Holder(A100.id, tmp_path, "shared"))
    assert holders[0].uuid() == "GPU-a"
    timing = Holder(A100.id, tmp_path, "alone")
    holders.append(timing)
    until_closed(tmp_path / "GPU-a.turn")
    timing.process.kill()
    timing.process.wait()
    with alarm(5), hold_gpu(A100.id, lambda: MACHINE, tmp_path) as hold:
        assert hold.uuid == "GPU-a"


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
    for name in ("GPU-a.lock", "GPU-a.turn"):
        assert stat.S_IMODE((tmp_path / "locks" / name).stat().st_mode) == 0o666


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
