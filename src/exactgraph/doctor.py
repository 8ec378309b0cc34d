"""``exactgraph doctor``: what on this machine would stop or change a run, one sentence a row."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from exactgraph.environment import nvml, precision
from exactgraph.environment.gpulock import LOCKS, lock_folder
from exactgraph.refusal import Refused, UserError

_GIB = 1 << 30
#: The rehearsal's model, its file and the traces; a model for a GPU needs about three times its size.
_SPACE_GIB = 5
#: Name: the lowest version that works, the first that is known not to (None: none known).
_LIBRARIES: dict[str, tuple[str, str | None]] = {
    "torch": ("2.11", None),
    "transformers": ("5.17", "6"),
    "tokenizers": ("0.22", None),
    "safetensors": ("0.5", None),
    "gguf": ("0.17", None),
}
#: The workflow reads Snakemake's record of outputs, which is private to each release.
_SNAKEMAKE = "9.27.1"

State = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Check:
    """One row: what was looked at, whether it is fine, and a sentence."""

    name: str
    state: State
    sentence: str

    def to_json(self) -> dict[str, str]:
        return asdict(self)


def doctor(folder: Path = Path(".")) -> list[Check]:
    """Every check, for a workflow that writes under ``folder``."""
    return [
        _python(),
        *(_library(name, *limits) for name, limits in _LIBRARIES.items()),
        _snakemake(),
        _checked("gpu", _gpu),
        _checked("precision", _precision),
        _disk(folder),
        _writable(folder),
        _checked("gpu locks", _locks),
    ]


def _checked(name: str, look: Callable[[], Check]) -> Check:
    try:
        return look()
    except (UserError, Refused) as error:
        return Check(name, "fail", str(error))


def _python() -> Check:
    version = platform.python_version()
    if _numbers(version) < (3, 11):
        return Check("python", "fail", f"Python {version} is too old: 3.11 or newer is needed.")
    return Check("python", "ok", f"Python {version}.")


def _numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: ``2.13.0+cpu`` is (2, 13, 0)."""
    numbers = []
    for part in version.split("+")[0].split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)


def _library(name: str, lowest: str, beyond: str | None) -> Check:
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Check(name, "fail", f"{name} is not installed: run make, or pip install exactgraph.")
    if _numbers(version) < _numbers(lowest) or (beyond is not None and _numbers(version) >= _numbers(beyond)):
        wanted = f"{lowest} or newer" + (f" and below {beyond}" if beyond else "")
        return Check(name, "fail", f"{name} {version} is installed; {wanted} is needed.")
    return Check(name, "ok", f"{name} {version}.")


def _snakemake() -> Check:
    try:
        version = metadata.version("snakemake")
    except metadata.PackageNotFoundError:
        return Check("snakemake", "fail", "Snakemake is not installed: pip install 'exactgraph[workflow]' brings it.")
    if version != _SNAKEMAKE:
        return Check("snakemake", "warn", f"Snakemake {version} is installed; the workflow is tested with {_SNAKEMAKE} only.")
    return Check("snakemake", "ok", f"Snakemake {version}.")


def _gpu() -> Check:
    every = nvml.gpus()
    found = nvml.visible(every)
    if not every:
        return Check("gpu", "warn", "No NVIDIA GPU: confirm will be a rehearsal on the CPU.")
    if not found:
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        return Check("gpu", "warn", f"CUDA_VISIBLE_DEVICES={hidden} hides every GPU: confirm will be a rehearsal on the CPU.")
    names = ", ".join(gpu.device.id for gpu in found)
    return Check("gpu", "ok", f"{names}, driver {nvml.driver_version()}.")


def _precision() -> Check:
    from exactgraph.environment.probe import this_device  # imports torch, which may be what is missing

    try:
        device, _ = this_device()
    except ImportError as error:
        return Check("precision", "fail", f"torch cannot be imported: {error}.")
    return Check("precision", "ok", f"Models run in {precision.choose(device)} on {device.id}.")


def _disk(folder: Path) -> Check:
    free = shutil.disk_usage(folder).free / _GIB
    state: State = "ok" if free >= _SPACE_GIB else "warn"
    return Check("disk", state, f"{free:.0f} GiB free in {folder.resolve()}; a rehearsal needs about {_SPACE_GIB}.")


def _writable(folder: Path) -> Check:
    if os.access(folder, os.W_OK | os.X_OK):
        return Check("write access", "ok", f"{folder.resolve()} can be written.")
    return Check("write access", "fail", f"{folder.resolve()} cannot be written: results have nowhere to go.")


def _locks() -> Check:
    folder = lock_folder()
    if os.access(folder, os.W_OK | os.X_OK):
        return Check("gpu locks", "ok", f"GPUs are locked in {LOCKS}.")
    return Check("gpu locks", "fail", f"{LOCKS} cannot be written: ask its owner for mode 1777.")
