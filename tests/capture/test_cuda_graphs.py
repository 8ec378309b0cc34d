"""Capture on an NVIDIA GPU: exact, with a lasting pool, and harmless where it fails."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest
import torch
from torch.nn import functional

from exactgraph.capture import Capturer, Graph, capturer_for
from exactgraph.capture.cuda import CudaCapturer
from exactgraph.refusal import Refused

pytestmark = pytest.mark.gpu

MIB = 1 << 20


@pytest.fixture
def gpu() -> Iterator[torch.device]:
    yield torch.device("cuda", 0)
    torch.cuda.set_per_process_memory_fraction(1.0, 0)
    gc.collect()
    torch.cuda.empty_cache()


@pytest.fixture
def capturer(gpu: torch.device) -> Capturer:
    return capturer_for(gpu)


def assert_usable(gpu: torch.device, capturer: Capturer) -> None:
    """Ordinary work and another capture both give right results."""
    torch.cuda.synchronize(gpu)
    assert not torch.cuda.is_current_stream_capturing()
    values = torch.arange(1000, device=gpu, dtype=torch.float32)
    assert (values * 2).sum().item() == 999000
    static = torch.full((256,), 3.0, device=gpu)
    graph = capturer.capture(lambda: (static * static,))
    static.fill_(5)
    graph.replay()
    assert torch.equal(graph.outputs[0], torch.full((256,), 25.0, device=gpu))


def mlp(gpu: torch.device) -> Callable[[torch.Tensor], torch.Tensor]:
    torch.manual_seed(0)
    up, down = (torch.randn(shape, device=gpu, dtype=torch.bfloat16) / 16 for shape in ((1024, 256), (256, 1024)))
    return lambda hidden: functional.linear(functional.silu(functional.linear(hidden, up)), down)


def test_a_gpu_gets_real_capture(capturer: Capturer) -> None:
    assert isinstance(capturer, CudaCapturer)
    assert not capturer.emulated


def test_every_replay_has_eagers_bits(gpu: torch.device, capturer: Capturer) -> None:
    work = mlp(gpu)
    static = torch.zeros(1, 1, 256, device=gpu, dtype=torch.bfloat16)
    graph = capturer.capture(lambda: (work(static),))
    results = []
    for _ in range(5):
        hidden = torch.randn_like(static)
        static.copy_(hidden)
        graph.replay()
        assert torch.equal(graph.outputs[0].view(torch.int16), work(hidden).view(torch.int16))
        results.append(graph.outputs[0].clone())
    assert len({result.sum().item() for result in results}) > 1
    assert capturer.graphs == 1
    assert capturer.seconds > 0


def test_outputs_keep_their_address_and_are_overwritten(gpu: torch.device, capturer: Capturer) -> None:
    static = torch.ones(8, device=gpu)
    graph = capturer.capture(lambda: (static + 1,))
    graph.replay()
    held, address = graph.outputs[0], graph.outputs[0].data_ptr()
    assert held.tolist() == [2.0] * 8
    static.fill_(9)
    assert held.tolist() == [2.0] * 8
    graph.replay()
    assert held.tolist() == [10.0] * 8
    assert graph.outputs[0].data_ptr() == address


def test_the_pool_outlives_every_graph_in_it(gpu: torch.device, capturer: Capturer) -> None:
    # A regression: planning captured one graph and dropped it, the pool went with it, and the next capture used a dead handle.
    work = mlp(gpu)
    static = torch.zeros(1, 1, 256, device=gpu, dtype=torch.bfloat16)
    for _ in range(3):
        graph = capturer.capture(lambda: (work(static),))
        graph.replay()
        torch.cuda.synchronize(gpu)
        del graph
        gc.collect()
        torch.cuda.empty_cache()
    assert_usable(gpu, capturer)


def test_a_graph_keeps_alive_what_its_function_reads(gpu: torch.device, capturer: Capturer) -> None:
    # A regression: position ids that only the captured function referred to were freed, and their memory reused.
    size = 4 * MIB

    def captured() -> Graph:
        only_here = torch.full((size,), 3.0, device=gpu)
        return capturer.capture(lambda: (only_here * 2,))

    graph = captured()
    gc.collect()
    squatters = [torch.full((size,), float("nan"), device=gpu) for _ in range(8)]
    graph.replay()
    assert (graph.outputs[0] == 6).all().item()
    del squatters


def test_intermediate_results_survive_in_the_pool(gpu: torch.device, capturer: Capturer) -> None:
    static = torch.ones(MIB, device=gpu)
    graph = capturer.capture(lambda: (((static * 2) + 1) * 3,))
    squatters = [torch.full((MIB,), float("nan"), device=gpu) for _ in range(16)]
    graph.replay()
    assert (graph.outputs[0] == 9).all().item()
    assert all(squatter.isnan().all().item() for squatter in squatters), "a replay wrote over memory that is not its own"


def test_a_function_that_synchronises_is_refused_and_the_device_goes_on(gpu: torch.device, capturer: Capturer) -> None:
    static = torch.ones(16, device=gpu)
    with pytest.raises(Refused) as caught:
        capturer.capture(lambda: (static * static.sum().item(),))
    assert caught.value.refusal.reason == "capture-failed"
    assert capturer.graphs == 0
    assert_usable(gpu, capturer)
    assert_usable(gpu, capturer_for(gpu))


def test_an_error_of_another_kind_leaves_no_capture_behind(gpu: torch.device, capturer: Capturer) -> None:
    def broken() -> tuple[torch.Tensor, ...]:
        if torch.cuda.is_current_stream_capturing():
            raise ZeroDivisionError
        return (torch.zeros(1, device=gpu),)

    with pytest.raises(ZeroDivisionError):
        capturer.capture(broken)
    assert gc.isenabled()
    assert_usable(gpu, capturer)


@pytest.mark.parametrize("when", ["warm-up", "capture"])
def test_out_of_memory_is_refused_and_the_device_goes_on(gpu: torch.device, capturer: Capturer, when: str) -> None:
    static = torch.ones(16, device=gpu)

    def greedy() -> tuple[torch.Tensor, ...]:
        if when == "warm-up" or torch.cuda.is_current_stream_capturing():
            big = torch.empty(1024 * MIB, dtype=torch.uint8, device=gpu)
            big[0] = 1
        return (static * 2,)

    gc.collect()
    torch.cuda.empty_cache()
    allowed = torch.cuda.memory_reserved(gpu) + 256 * MIB
    torch.cuda.set_per_process_memory_fraction(allowed / torch.cuda.get_device_properties(gpu).total_memory, gpu)
    with pytest.raises(Refused) as caught:
        capturer.capture(greedy)
    assert caught.value.refusal.reason == "capture-out-of-memory"
    assert capturer.graphs == 0
    # Still under the ceiling: what failed must have given back what it took.
    assert_usable(gpu, capturer)


def test_work_of_another_stream_is_seen(gpu: torch.device, capturer: Capturer) -> None:
    static = torch.zeros(MIB, device=gpu)
    graph = capturer.capture(lambda: (static + 1,))
    stream = torch.cuda.Stream(gpu)
    stream.wait_stream(torch.cuda.current_stream(gpu))
    with torch.cuda.stream(stream):
        static.fill_(41)
        graph.replay()
    stream.synchronize()
    assert (graph.outputs[0] == 42).all().item()


def test_collection_is_held_off_only_during_capture(gpu: torch.device, capturer: Capturer) -> None:
    seen: list[bool] = []

    def watched() -> tuple[torch.Tensor, ...]:
        seen.append(gc.isenabled())
        return (torch.zeros(1, device=gpu),)

    assert gc.isenabled()
    capturer.capture(watched)
    assert gc.isenabled()
    assert len(seen) > 1
    assert not any(seen)


def test_graphs_of_fifty_lengths_share_their_memory(gpu: torch.device, capturer: Capturer) -> None:
    # Each needs 32 MiB and more for intermediate results; unshared, fifty would need 1.6 GiB.
    lengths = range(1, 51)
    buffer = torch.ones(len(lengths), 8 * MIB // 16, device=gpu)

    def over(length: int) -> Callable[[], tuple[torch.Tensor, ...]]:
        return lambda: ((buffer[:length].sum(0).repeat(16) * 2).sum().reshape(1),)

    graphs: dict[int, Graph] = {}
    reserved: dict[int, int] = {}
    for length in lengths:
        graphs[length] = capturer.capture(over(length))
        reserved[length] = torch.cuda.memory_reserved(gpu)
    assert capturer.graphs == len(lengths)
    assert reserved[50] - reserved[10] <= 64 * MIB, reserved
    assert capturer.bytes <= reserved[50]
    # In any order, as long as each output is read before the next replay.
    for length in reversed(lengths):
        graphs[length].replay()
        assert graphs[length].outputs[0].item() == pytest.approx(float(length * 8 * MIB * 2), rel=1e-5)
