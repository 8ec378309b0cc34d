"""The device id: a slug of what bits and speed depend on, for example ``nvidia-h200-sm90-132sm-141g``.

Identical GPUs have the same id and share results; the UUID is evidence and never part of a key. Nothing here imports torch.
"""

from __future__ import annotations

import platform
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_MIG = re.compile(r"^(?P<name>.+?)\s+MIG\s+(?P<profile>\S+)$")


@dataclass(frozen=True)
class Device:
    """A place where models run, in the words of ``probe.json``.

    ``memory_gb`` is the driver's total in GiB, rounded up; 0 on a CPU, whose memory no bit or key depends on.
    """

    id: str
    kind: str
    name: str
    capability: str | None
    sm_count: int | None
    memory_gb: int
    mig: str | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def slug(text: str) -> str:
    """``text`` in lower case with every run of other characters than a-z, 0-9 and _ as one hyphen."""
    return re.sub(r"[^a-z0-9_]+", "-", text.lower()).strip("-")


def cuda_device(name: str, capability: tuple[int, int], sm_count: int, memory_bytes: int) -> Device:
    """The device that the plain values describe.

    ``name`` is the driver's, which ends in ``MIG <profile>`` for a slice. ``memory_bytes`` is NVML's total, also where the
    other values come from torch: CUDA's own total is a little smaller, so on some GPUs the two round differently.
    Rounding up gives the figure on the box (143771 MiB is the H200's 141).
    """
    mig = None
    if found := _MIG.match(name):
        name, mig = found["name"], found["profile"]
    major, minor = capability
    memory_gb = -(-memory_bytes // (1 << 30))
    parts = [slug(name), f"sm{major}{minor}", f"{sm_count}sm", f"{memory_gb}g"]
    if mig:
        parts.append(f"mig-{slug(mig)}")
    return Device("-".join(parts), "cuda", name, f"{major}.{minor}", sm_count, memory_gb, mig)


def cpu_device(machine: str, model: str) -> Device:
    """The CPU as a device. Its id names the architecture only; the model, which changes bits, is in the environment key."""
    return Device(f"cpu-{slug(machine)}", "cpu", model, None, None, 0, None)


def this_cpu() -> Device:
    """The CPU of this machine."""
    return cpu_device(platform.machine(), cpu_model())


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's model as the kernel names it, with the numbers that tell apart models of one name."""
    fields: dict[str, str] = {}
    if cpuinfo.exists():
        for line in cpuinfo.read_text().split("\n\n")[0].splitlines():
            key, _, value = line.partition(":")
            fields[key.strip()] = value.strip()
    name = fields.get("model name") or " ".join(
        fields[key] for key in ("CPU implementer", "CPU part", "CPU variant") if key in fields
    )
    numbers = "/".join(fields[key] for key in ("cpu family", "model", "stepping") if key in fields)
    return " ".join(part for part in (name or platform.processor() or "unknown", f"({numbers})" if numbers else "") if part)
