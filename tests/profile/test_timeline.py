"""Time given to kinds and parts, by hand-made recordings. Times are microseconds."""

from __future__ import annotations

import pytest

from exactgraph.profile.gpu import gpu_time, merged
from exactgraph.profile.host import Place, host_time
from exactgraph.profile.labels import FORWARD, STEP, label_of
from exactgraph.profile.record import Event

MAIN, STREAM = 1, 7


def host(name: str, start: float, end: float, category: str = "user_annotation", correlation: int | None = None) -> Event:
    return Event(category, name, MAIN, start, end, correlation)


def launch(start: float, correlation: int, name: str = "cudaLaunchKernel") -> Event:
    return host(name, start, start + 2, "cuda_runtime", correlation)


def kernel(start: float, end: float, correlation: int, category: str = "kernel") -> Event:
    return Event(category, "some_kernel", STREAM, start, end, correlation)


def mark(start: float) -> Event:
    return host(STEP, start, start + 1)


def step(at: float, correlation: int) -> list[Event]:
    """A step of 100 microseconds: 20 of sampling, then a forward pass with an MLP and attention in it."""
    return [
        mark(at),
        host("aten::argmax", at + 5, at + 15, "cpu_op"),
        launch(at + 8, correlation),
        host(FORWARD, at + 20, at + 100),
        host(label_of("activation", "mlp"), at + 30, at + 60),
        host(label_of("projection"), at + 35, at + 50),
        launch(at + 40, correlation + 1),
        host("aten::silu", at + 52, at + 56, "cpu_op"),
        launch(at + 53, correlation + 2),
        host(label_of("attention"), at + 70, at + 90),
        host("aten::scaled_dot_product_attention", at + 75, at + 85, "cpu_op"),
        launch(at + 80, correlation + 3),
    ]


STEPS = [*step(0, 10), *step(100, 20), *step(200, 30), mark(300), launch(305, 40)]


def test_every_moment_belongs_to_one_kind() -> None:
    time = host_time(STEPS, left_out=1)
    assert (time.steps, time.begin, time.end) == (2, 100, 300)
    assert dict(time.kinds) == {"sampling": 40, "other": 60, "activation": 30, "projection": 30, "attention": 40}
    assert sum(time.kinds.values()) == time.end - time.begin


def test_a_part_holds_all_that_happens_inside() -> None:
    assert dict(host_time(STEPS, left_out=1).parts) == {"mlp": 60}


def test_calls_outside_the_steps_are_left_out() -> None:
    time = host_time(STEPS, left_out=1)
    assert set(time.calls) == {20, 21, 22, 23, 30, 31, 32, 33}
    assert time.calls[21] == ("cudaLaunchKernel", Place("projection", "mlp", forward=True))
    assert time.calls[20] == ("cudaLaunchKernel", Place("sampling", "", forward=False))


def test_other_threads_are_left_out() -> None:
    stranger = Event("cpu_op", "aten::add", MAIN + 1, 110, 190, None)
    assert host_time([*STEPS, stranger], left_out=1).kinds == host_time(STEPS, left_out=1).kinds


def test_too_few_steps_are_an_error() -> None:
    with pytest.raises(ValueError, match="no whole step after the first 3"):
        host_time(STEPS, left_out=3)


def test_kernels_go_to_the_kind_that_launched_them_and_idle_time_to_its_cause() -> None:
    events = [
        *STEPS,
        kernel(90, 95, 13),  # of the step left out
        kernel(110, 112, 20),
        kernel(145, 150, 21),
        kernel(155, 158, 22),
        kernel(185, 190, 23),
        kernel(210, 212, 30, "gpu_memcpy"),
        kernel(245, 250, 31),
        kernel(255, 258, 32),
        kernel(285, 290, 33),
    ]
    gpu = gpu_time(events, host_time(events, left_out=1))
    assert gpu is not None
    assert gpu.total == 8
    assert gpu.kernels == {"sampling": 2, "projection": 2, "activation": 2, "attention": 2, "mlp": 4}
    assert gpu.times == {"sampling": 4, "projection": 10, "activation": 6, "attention": 10, "mlp": 16}
    assert gpu.busy == 30
    # Idle: 112-145, 150-155, 158-185, 190-210, 212-245, 250-255, 258-285, of which the host was outside until 120, 200-220.
    assert gpu.gap == 25 + 5 + 27 + 10 + 25 + 5 + 27
    assert gpu.host == 8 + 10 + 8


def test_a_graph_is_one_launch_of_many_kernels_and_a_synchronisation_none() -> None:
    calls = [launch(15, 1, "cudaGraphLaunch"), launch(20, 2), launch(30, 3, "cudaStreamSynchronize")]
    events = [mark(0), *calls, mark(100), kernel(20, 25, 1), kernel(25, 30, 1), kernel(40, 45, 2)]
    gpu = gpu_time(events, host_time(events, left_out=0))
    assert gpu is not None
    assert (gpu.total, gpu.launches, gpu.graph_launches) == (3, 2, 1)


def test_a_head_is_counted_once_though_kind_and_part_share_a_name() -> None:
    events = [mark(0), host(label_of("head", "head"), 10, 30), launch(15, 1), mark(100), kernel(20, 25, 1)]
    time = host_time(events, left_out=0)
    gpu = gpu_time(events, time)
    assert gpu is not None
    assert (time.parts["head"], time.kinds["head"], gpu.kernels["head"], gpu.times["head"]) == (20, 20, 1, 5)


def test_without_gpu_work_there_is_no_gpu_time() -> None:
    assert gpu_time(STEPS, host_time(STEPS, left_out=1)) is None


def test_intervals_that_touch_are_one() -> None:
    assert merged([(5, 6), (1, 3), (3, 4), (2, 3)]) == [(1, 4), (5, 6)]
