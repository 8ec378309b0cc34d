"""torch's flags that change bits, as this process has them now."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

SDP_BACKENDS = {-1: "error", 0: "math", 1: "flash", 2: "efficient", 3: "cudnn", 4: "overrideable"}
# What a call of ours changes while it runs: another thread is to read what the flags are for everybody else.
_OURS = ("sdp.flash", "sdp.efficient", "sdp.math", "sdp.cudnn", "sdp.order")
_aside: dict[str, str] = {}
_changing = threading.RLock()
os.register_at_fork(before=_changing.acquire, after_in_parent=_changing.release, after_in_child=_changing.release)


def flags() -> dict[str, str]:
    """Every flag as text; well under a tenth of a millisecond."""
    with _changing:
        return {**{name: read_flag(read) for name, read in _FLAGS.items()}, **_aside}


def settle(device: torch.device) -> None:
    """Have torch settle its order of attention backends, which it does on a GPU when it first chooses one; costs microseconds.

    Read before that, the order would seem to have been changed by somebody afterwards.
    """
    if device.type == "cuda":
        row = torch.empty((1, 8, 1, 128), dtype=torch.bfloat16, device=device)
        torch._fused_sdp_choice(row, row, row)


@contextmanager
def set_aside(pin: AbstractContextManager[object]) -> Iterator[None]:
    """Have ``pin``, which changes the choice of attention, in force in the block; :func:`flags` says what it was before."""
    with _changing:
        outermost = not _aside
        if outermost:
            _aside.update({name: value for name, value in flags().items() if name in _OURS})
        pin.__enter__()
    try:
        yield
    finally:
        with _changing:
            pin.__exit__(None, None, None)
            if outermost:
                _aside.clear()


def read_flag(read: Callable[[], object]) -> str:
    """A flag's value as text; torch raises where a newer setting contradicts an older one, and that too is a state."""
    try:
        return str(read())
    except (AttributeError, RuntimeError) as error:
        return f"unreadable: {type(error).__name__}"


_FLAGS: dict[str, Callable[[], object]] = {
    "cublas.allow_tf32": lambda: torch.backends.cuda.matmul.allow_tf32,
    "cublas.bf16_reduced": lambda: torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
    "cublas.fp16_reduced": lambda: torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction,
    "cublas.fp16_accumulation": lambda: torch.backends.cuda.matmul.allow_fp16_accumulation,
    "cublas.library": torch.backends.cuda.preferred_blas_library,
    "cudnn.enabled": lambda: torch.backends.cudnn.enabled,
    "cudnn.allow_tf32": lambda: torch.backends.cudnn.allow_tf32,
    "cudnn.benchmark": lambda: torch.backends.cudnn.benchmark,
    "cudnn.deterministic": lambda: torch.backends.cudnn.deterministic,
    "mkldnn.enabled": lambda: torch.backends.mkldnn.enabled,
    "matmul_precision": torch.get_float32_matmul_precision,
    "deterministic": torch.are_deterministic_algorithms_enabled,
    "flush_denormal": lambda: not bool(torch.tensor([1e-40], dtype=torch.float32).mul(1.0).ne(0).item()),
    "sdp.flash": torch.backends.cuda.flash_sdp_enabled,
    "sdp.efficient": torch.backends.cuda.mem_efficient_sdp_enabled,
    "sdp.math": torch.backends.cuda.math_sdp_enabled,
    "sdp.cudnn": torch.backends.cuda.cudnn_sdp_enabled,
    "sdp.math_reduced": torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed,
    "sdp.order": lambda: ",".join(SDP_BACKENDS.get(int(place), str(place)) for place in torch._C._get_sdp_priority_order()),
}
