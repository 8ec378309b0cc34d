"""The facts behind the environment key: a flat ``str -> str`` of everything that changes bits, as this process has it.

Not a fact: Python's version (it runs no arithmetic of the model), thread counts on a GPU, anything that only changes speed.
Read it before a stage changes any flag; see :func:`exactgraph.environment.probe.present`.
"""

from __future__ import annotations

import ctypes
import re
from importlib import metadata
from pathlib import Path

import torch
import transformers

from exactgraph.environment import nvml
from exactgraph.environment.device import Device, cpu_model
from exactgraph.environment.flags import SDP_BACKENDS, flags, read_flag
from exactgraph.environment.threads import usable
from exactgraph.environment.variables import bit_changing


def collect(device: Device) -> dict[str, str]:
    """Every fact of this process on ``device``."""
    facts = {
        "torch": str(torch.__version__),
        "torch commit": str(torch.version.git_version),
        "transformers": str(transformers.__version__),
        "tokenizers": _installed("tokenizers"),
        # Also on a GPU: buffers such as RoPE's inverse frequencies are computed on the CPU while a model loads.
        "cpu capability": torch.backends.cpu.get_cpu_capability(),
    }
    facts |= _cuda(device) if device.kind == "cuda" else _cpu()
    facts |= {f"flag {name}": value for name, value in flags().items()}
    facts |= {f"variable {name}": value for name, value in bit_changing().items()}
    return facts


def _installed(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "none"


def _cpu() -> dict[str, str]:
    """What changes bits of a model that runs on the CPU."""
    build = torch.__config__.show()
    return {
        "cpu": cpu_model(),
        "threads": str(usable()),
        "mkl": _first(r"Math Kernel Library Version ([\d.]+)", build),
        "onednn": _first(r"MKL-DNN (v\S+)", build),
    }


def _first(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    return found[1] if found else "none"


def _cuda(device: Device) -> dict[str, str]:
    """What changes bits of a model that runs on the GPU. Starts CUDA in this process."""
    torch.cuda.current_device()
    return {
        "driver": nvml.driver_version() or "none",
        "cuda": str(torch.version.cuda),
        "cublas": _property("libcublas", "cublasGetProperty"),
        "cublaslt": _property("libcublasLt", "cublasLtGetProperty"),
        "cudnn": read_flag(torch.backends.cudnn.version),
        "triton": _installed("triton"),
        "sdp.choice": _decode_backend(device),
    }


def _property(library: str, function: str) -> str:
    """The version of the copy that torch loaded into this process, which ``LD_LIBRARY_PATH`` may have chosen."""
    pattern = re.compile(rf"(/\S*/{library}\.so\S*)")
    loaded = sorted({found[1] for line in Path("/proc/self/maps").read_text().splitlines() if (found := pattern.search(line))})
    if not loaded:
        return "not loaded"
    ask = getattr(ctypes.CDLL(loaded[0]), function)
    numbers = []
    for part in range(3):  # libraryPropertyType: major, minor, patch
        value = ctypes.c_int()
        ask(ctypes.c_int(part), ctypes.byref(value))
        numbers.append(str(value.value))
    return ".".join(numbers)


def _decode_backend(device: Device) -> str:
    """Which attention backend torch picks by itself for one new token: q [1, 8, 1, 128] on k, v [1, 8, 300, 128]."""
    dtype = torch.bfloat16 if device.capability and int(device.capability.split(".")[0]) >= 8 else torch.float16
    try:
        query = torch.empty(1, 8, 1, 128, dtype=dtype, device="cuda")
        past = torch.empty(1, 8, 300, 128, dtype=dtype, device="cuda")
        return SDP_BACKENDS.get(int(torch._fused_sdp_choice(query, past, past)), "unknown")
    except RuntimeError as error:  # a GPU that this build of torch has no kernels for
        return f"unreadable: {type(error).__name__}"
