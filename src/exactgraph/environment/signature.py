"""A cheap text that changes when the environment key may change: the probe's parameter in the workflow.

Without torch, in tens of milliseconds. It may change where the key does not (the probe then runs and finds the same key);
the other way round would leave results under a key that no longer holds. It never raises: an error becomes text, and the
probe job, which meets the same error, reports it.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable
from importlib import metadata, util
from pathlib import Path

from exactgraph.canonical import canonical_bytes, file_digest
from exactgraph.environment import nvml
from exactgraph.environment.device import cpu_model
from exactgraph.environment.threads import usable
from exactgraph.environment.variables import bit_changing

_PACKAGES = re.compile(r"^(torch|pytorch[-_].*|triton|transformers|tokenizers|nvidia[-_].*)$", re.IGNORECASE)
#: What decides which copy of a library, and which GPU, a process gets.
_SEARCH = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH")


def signature() -> str:
    """One line of JSON: GPUs in order, driver, packages, variables, CPU."""
    return canonical_bytes({name: _text(read) for name, read in _PARTS.items()}).decode().strip()


def _text(read: Callable[[], object]) -> object:
    try:
        return read()
    except Exception as error:
        return f"error: {type(error).__name__}: {error}"


def _gpus() -> object:
    return [gpu.device.id for gpu in nvml.visible(nvml.gpus())]


def _packages() -> object:
    """Versions of the installed packages that carry or choose kernels. The first found on the path is the one imported."""
    versions: dict[str, str] = {}
    for distribution in metadata.distributions():
        name = distribution.metadata["Name"]
        if name and _PACKAGES.match(name):
            versions.setdefault(name.lower(), distribution.version)
    return versions


def _torch_build() -> object:
    """The digest of torch's own version file: names the commit and the CUDA of a build whose version number did not change."""
    spec = util.find_spec("torch")
    if spec is None or spec.origin is None:
        return "none"
    return file_digest(Path(spec.origin).parent / "version.py")[:16]


def _cpu() -> object:
    """Model, instruction sets and usable cores: on a GPU slot too, where the key holds the CPU's vector capability."""
    flags = ""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(("flags", "Features")):
            listed = line.partition(":")[2].split()
            flags = " ".join(sorted(flag for flag in listed if flag.startswith(("avx", "amx", "fma", "sve"))))
            break
    return {"machine": platform.machine(), "model": cpu_model(), "flags": flags, "cores": usable()}


def _search() -> object:
    """Which GPU a scheduler gave this job says nothing: the next job gets another one of the same kind."""
    ignored = {"CUDA_VISIBLE_DEVICES"} if "SLURM_JOB_ID" in os.environ else set()
    return {name: os.environ[name] for name in _SEARCH if name in os.environ and name not in ignored}


_PARTS: dict[str, Callable[[], object]] = {
    "gpus": _gpus,
    "driver": nvml.driver_version,
    "packages": _packages,
    "torch build": _torch_build,
    "python": platform.python_version,
    "variables": bit_changing,
    "search": _search,
    "cpu": _cpu,
}

if __name__ == "__main__":  # how a node of a cluster is asked, see workflow/look.py
    print(signature())
