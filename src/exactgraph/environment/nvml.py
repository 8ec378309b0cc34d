"""The NVIDIA GPUs of this machine, read through NVML: without torch and without starting CUDA in this process.

CUDA reads ``CUDA_VISIBLE_DEVICES`` once, when it starts, so whoever chooses a GPU must not have started it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pynvml

from exactgraph.environment.device import Device, cuda_device
from exactgraph.refusal import UserError

#: NVML counts cores, not multiprocessors: cores a multiprocessor by compute capability, 128 in every other one.
_CORES_PER_SM = {(6, 0): 64, (7, 0): 64, (7, 2): 64, (7, 5): 64, (8, 0): 64}


@dataclass(frozen=True)
class Gpu:
    """One GPU or MIG slice. ``index`` is the GPU's place in PCI bus order; a slice has its GPU's ``index`` and ``parent``."""

    device: Device
    uuid: str
    index: int
    parent: str


@contextmanager
def started() -> Iterator[bool]:
    """NVML, started while the block runs; False where the machine has no NVIDIA driver."""
    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded):
        yield False
        return
    except pynvml.NVMLError as error:
        raise _silent(error) from error
    try:
        yield True
    except pynvml.NVMLError as error:  # a GPU that fell off the bus answers nothing more
        raise _silent(error) from error
    finally:
        pynvml.nvmlShutdown()


def _silent(error: Exception) -> UserError:
    return UserError(f"The NVIDIA driver does not answer ({error}): try nvidia-smi, then restart the machine.")


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _slices(handle: Any) -> list[Any]:
    """The MIG slices of a GPU; empty where MIG is off or unknown to it."""
    try:
        current, _ = pynvml.nvmlDeviceGetMigMode(handle)
        if current != pynvml.NVML_DEVICE_MIG_ENABLE:
            return []
        count = pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)
    except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound):
        return []
    found = []
    for place in range(count):
        try:
            found.append(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place))
        except pynvml.NVMLError_NotFound:
            continue
    return found


def gpus() -> list[Gpu]:
    """Every GPU that this process may use, in PCI bus order; a GPU cut by MIG appears as its slices."""
    found: list[Gpu] = []
    with started() as running:
        if not running:
            return []
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            except pynvml.NVMLError_NoPermission:  # another container's or job's GPU
                continue
            parent = _text(pynvml.nvmlDeviceGetUUID(handle))
            major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
            slices = _slices(handle)
            for part in slices or [handle]:
                if slices:
                    sm_count = int(pynvml.nvmlDeviceGetAttributes(part).multiprocessorCount)
                else:
                    sm_count = pynvml.nvmlDeviceGetNumGpuCores(part) // _CORES_PER_SM.get((major, minor), 128)
                device = cuda_device(
                    _text(pynvml.nvmlDeviceGetName(part)),
                    (major, minor),
                    sm_count,
                    int(pynvml.nvmlDeviceGetMemoryInfo(part).total),
                )
                found.append(Gpu(device, _text(pynvml.nvmlDeviceGetUUID(part)), index, parent))
    return found


def driver_version() -> str | None:
    """The NVIDIA driver's version, or None without one."""
    with started() as running:
        return _text(pynvml.nvmlSystemGetDriverVersion()) if running else None


def visible(found: Sequence[Gpu], variables: Mapping[str, str] = os.environ) -> list[Gpu]:
    """What ``CUDA_VISIBLE_DEVICES`` leaves of ``found``, in its order; as CUDA does, the first unknown entry ends the list."""
    wanted = variables.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return list(found)
    chosen: list[Gpu] = []
    for entry in (part.strip() for part in wanted.split(",")):
        if entry.isdigit():
            match = next((gpu for gpu in found if gpu.index == int(entry)), None)
        elif entry.startswith(("GPU-", "MIG-")):
            match = next((gpu for gpu in found if gpu.uuid.startswith(entry) or gpu.parent.startswith(entry)), None)
        else:
            match = None
        if match is None:
            break
        chosen.append(match)
    return chosen
