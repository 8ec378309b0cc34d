"""A stand-in for NVML: boards, cut by MIG or whole, with what other work and the driver do to them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest


@dataclass
class Slice:
    uuid: str
    name: str
    sm_count: int
    mib: int


@dataclass
class Board:
    """A GPU. Lists are answers in turn, the last one for good; None is a figure that the driver does not have."""

    uuid: str
    name: str = "NVIDIA H200"
    capability: tuple[int, int] = (9, 0)
    cores: int = 132 * 128
    mib: int = 143771
    slices: list[Slice] = field(default_factory=list)
    error: type[pynvml.NVMLError] | None = None
    busy: list[int] | None = field(default_factory=lambda: [0])
    processes: dict[int, int] = field(default_factory=lambda: {os.getpid(): 90})
    watts: tuple[int, int] | None = (700, 700)
    reasons: int | None = 0
    power_held_ns: list[int] | None = field(default_factory=lambda: [0])


class FakeNvml:
    """Takes the place of the functions of ``pynvml`` that exactgraph calls."""

    def __init__(self, *boards: Board, error: type[pynvml.NVMLError] | None = None) -> None:
        self.boards = boards
        self.error = error
        self.started = 0

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in dir(self):
            if name.startswith("nvml"):
                monkeypatch.setattr(pynvml, name, getattr(self, name))

    def nvmlInit(self) -> None:
        if self.error:
            raise self.error()
        self.started += 1

    def nvmlShutdown(self) -> None:
        self.started -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.1"

    def nvmlDeviceGetCount(self) -> int:
        return len(self.boards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Board:
        board = self.boards[index]
        if board.error:
            raise board.error()
        return board

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Board | Slice:
        (found,) = (part for board in self.boards for part in (board, *board.slices) if part.uuid == uuid)
        return found

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, part: Slice) -> Board:
        (found,) = (board for board in self.boards if part in board.slices)
        return found

    def nvmlDeviceGetUUID(self, part: Board | Slice) -> str:
        return part.uuid

    def nvmlDeviceGetName(self, part: Board | Slice) -> str:
        return part.name

    def nvmlDeviceGetCudaComputeCapability(self, board: Board) -> tuple[int, int]:
        return board.capability

    def nvmlDeviceGetNumGpuCores(self, board: Board) -> int:
        return board.cores

    def nvmlDeviceGetMemoryInfo(self, part: Board | Slice) -> Any:
        return SimpleNamespace(total=part.mib << 20)

    def nvmlDeviceGetMigMode(self, board: Board) -> tuple[int, int]:
        if not board.slices:
            raise pynvml.NVMLError_NotSupported()
        return pynvml.NVML_DEVICE_MIG_ENABLE, pynvml.NVML_DEVICE_MIG_ENABLE

    def nvmlDeviceGetMaxMigDeviceCount(self, board: Board) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, board: Board, place: int) -> Slice:
        if place >= len(board.slices):
            raise pynvml.NVMLError_NotFound()
        return board.slices[place]

    def nvmlDeviceGetAttributes(self, part: Slice) -> Any:
        return SimpleNamespace(multiprocessorCount=part.sm_count)

    def nvmlDeviceGetUtilizationRates(self, part: Board | Slice) -> Any:
        if isinstance(part, Slice) or part.busy is None:
            raise pynvml.NVMLError_NotSupported()
        return SimpleNamespace(gpu=_next(part.busy))

    def nvmlDeviceGetComputeRunningProcesses(self, part: Board | Slice) -> list[Any]:
        if isinstance(part, Slice):
            raise pynvml.NVMLError_NotSupported()
        return [SimpleNamespace(pid=pid) for pid in part.processes]

    def nvmlDeviceGetProcessUtilization(self, board: Board, since: int) -> list[Any]:
        if not any(board.processes.values()):
            raise pynvml.NVMLError_NotFound()
        return [SimpleNamespace(pid=pid, smUtil=share, timeStamp=since + 1) for pid, share in board.processes.items()]

    def nvmlDeviceGetPowerManagementLimit(self, board: Board) -> int:
        return self._watts(board)[0] * 1000

    def nvmlDeviceGetPowerManagementDefaultLimit(self, board: Board) -> int:
        return self._watts(board)[1] * 1000

    def nvmlDeviceGetCurrentClocksEventReasons(self, board: Board) -> int:
        if board.reasons is None:
            raise pynvml.NVMLError_FunctionNotFound()
        return board.reasons

    def nvmlDeviceGetViolationStatus(self, board: Board, policy: int) -> Any:
        if board.power_held_ns is None:
            raise pynvml.NVMLError_NotSupported()
        held = _next(board.power_held_ns) if policy == pynvml.NVML_PERF_POLICY_POWER else 0
        return SimpleNamespace(violationTime=held)

    @staticmethod
    def _watts(board: Board) -> tuple[int, int]:
        if board.watts is None:
            raise pynvml.NVMLError_NotSupported()
        return board.watts


def _next(answers: list[int]) -> int:
    return answers.pop(0) if len(answers) > 1 else answers[0]
