"""Capture on an NVIDIA GPU."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, ClassVar

import torch

from exactgraph.capture.graph import Capturer, Function, Graph
from exactgraph.refusal import Refused

WARMUPS = 2


class SideStream:
    """A stream that nobody else captures on, as long as this object or a graph that was captured on it lives.

    cuBLAS has a workspace for each stream, 32 MiB on Hopper, which torch frees for all streams or for none, and graphs hold
    its address. So streams are used again once all graphs on them are gone: what stays is one workspace for as many capturers
    as lived at once. They are of high priority because that is another set than the one that programs mostly take theirs from.
    """

    _idle: ClassVar[defaultdict[torch.device, list[torch.cuda.Stream]]] = defaultdict(list)

    def __init__(self, device: torch.device) -> None:
        idle = self._idle[device]
        self.stream = idle.pop() if idle else torch.cuda.Stream(device, priority=-1)
        weakref.finalize(self, idle.append, self.stream)


class CudaGraph(Graph):
    """Keeps the captured function too: a graph holds bare addresses, and the function what lives there."""

    def __init__(
        self, graph: torch.cuda.CUDAGraph, outputs: tuple[torch.Tensor, ...], function: Function, side: SideStream
    ) -> None:
        self._graph = graph
        self._side = side
        self._function = function
        self.outputs = outputs

    def replay(self) -> None:
        self._graph.replay()


class CudaCapturer(Capturer):
    """Captures on one side stream of ``device`` into one memory pool.

    Warm-up runs on the side stream, so that everything that is created lazily (cuBLAS handles and workspaces, loaded kernels)
    exists before capture and belongs to the stream that capture uses. Garbage collection is held off meanwhile: a collected
    graph of somebody else would issue CUDA calls in the middle of ours.
    """

    emulated = False

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device
        self._side = SideStream(device)
        self._pool: Any = None  # torch names the type of its handles nowhere
        self._keeper: torch.cuda.CUDAGraph | None = None

    def capture(self, function: Function) -> Graph:
        started = time.perf_counter()
        before = torch.cuda.memory_reserved(self._device)
        try:
            if self._pool is None:
                self._open_pool()
            graph, outputs = self._capture(function)
        except torch.cuda.OutOfMemoryError as error:
            torch.cuda.empty_cache()
            raise Refused("capture-out-of-memory", f"Capturing a graph ran out of GPU memory: {error}") from error
        except RuntimeError as error:
            raise Refused("capture-failed", f"The work cannot be captured in a CUDA graph: {error}") from error
        self.graphs += 1
        self.seconds += time.perf_counter() - started
        self.bytes += max(0, torch.cuda.memory_reserved(self._device) - before)
        return CudaGraph(graph, outputs, function, self._side)

    def _open_pool(self) -> None:
        """Begin a pool. It lives as long as a graph in it does, and candidates may drop all theirs, so one graph stays."""
        self._pool = torch.cuda.graph_pool_handle()
        self._keeper, _ = self._capture(lambda: (torch.zeros(1, device=self._device),))

    def _capture(self, function: Function) -> tuple[torch.cuda.CUDAGraph, tuple[torch.Tensor, ...]]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(self._device), torch.inference_mode(False), torch.no_grad(), _collection_held_off():
            current, side = torch.cuda.current_stream(), self._side.stream
            side.wait_stream(current)
            with torch.cuda.stream(side):
                for _ in range(WARMUPS):
                    function()
                # Work of other threads may go on while this thread captures.
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    outputs = function()
                    graph.capture_end()
                except BaseException:
                    self._abandon(graph)
                    raise
            current.wait_stream(side)
        return graph, outputs

    def _abandon(self, graph: torch.cuda.CUDAGraph) -> None:
        """End a capture that failed, so that stream and allocator serve ordinary work again.

        Where ending it fails too (a synchronisation spoilt the capture), torch before 2.12 leaves the allocator recording into
        the pool (pytorch #180395), and such a pool takes no other capture: the next one begins a new pool.
        """
        with suppress(RuntimeError):
            graph.capture_end()
        with suppress(RuntimeError):
            torch._C._cuda_endAllocateToPool(self._device.index, self._pool)
        self._pool = None


class _HeldOff:
    """Garbage collection held off while any thread captures. It is a switch of the process: the last one out turns it on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._captures = 0
        self._collecting = False

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            if not self._captures:
                self._collecting = gc.isenabled()
                gc.disable()
            self._captures += 1
        try:
            yield
        finally:
            with self._lock:
                self._captures -= 1
                if not self._captures and self._collecting:
                    gc.enable()


_collection_held_off = _HeldOff()
