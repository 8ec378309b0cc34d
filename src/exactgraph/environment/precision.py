"""Which precision a device runs a model in."""

from __future__ import annotations

from exactgraph.environment.device import Device
from exactgraph.refusal import Refused, UserError

PRECISIONS = ("bf16", "fp16", "fp32")


def choose(device: Device, wanted: str = "auto") -> str:
    """``bf16``, ``fp16`` or ``fp32`` for ``device``; raises :class:`Refused` where it cannot run so.

    ``auto`` is bf16 from compute capability 8.0 on, fp16 on 7.5, fp32 on a CPU.
    """
    if wanted not in ("auto", *PRECISIONS):
        raise UserError(f"The precision {wanted!r} is not known: use auto, {', '.join(PRECISIONS)}.")
    if device.capability is None:
        return "fp32" if wanted == "auto" else wanted
    major, minor = (int(part) for part in device.capability.split("."))
    if (major, minor) < (7, 5):
        raise Refused(
            "gpu-too-old",
            f"{device.name} has compute capability {device.capability}; current CUDA builds of PyTorch begin at 7.5.",
        )
    if wanted == "bf16" and major < 8:
        raise Refused(
            "bf16-unsupported",
            f"{device.name} has compute capability {device.capability} and computes bf16 only from 8.0 on: "
            "set its precision to auto or fp16.",
        )
    if wanted != "auto":
        return wanted
    return "bf16" if major >= 8 else "fp16"
