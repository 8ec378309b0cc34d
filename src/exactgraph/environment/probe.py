"""What a slot's jobs find when they wake up: device, environment key, precision."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from typing import Any

from exactgraph.canonical import short
from exactgraph.environment import nvml, precision, threads
from exactgraph.environment.device import Device, cuda_device, this_cpu
from exactgraph.environment.gpulock import HELD
from exactgraph.refusal import Refused, UserError


def probe(slot: str, wanted: str = "auto") -> dict[str, Any]:
    """The content of ``probe.json`` for ``slot``; ``wanted`` is the slot's precision.

    A GPU that cannot run this way is a result, in ``refusal``. A GPU that torch cannot reach is the user's to mend.
    """
    device, uuid = this_device()
    facts = _facts(device)
    refusal = None
    try:
        chosen = precision.choose(device, wanted)
    except Refused as refused:
        chosen, refusal = "fp32", refused.refusal.to_json()
    return {
        "slot": slot,
        "host": platform.node(),
        "rehearsal": device.kind == "cpu",
        "gpu_uuid": uuid,
        "device": device.to_json(),
        "environment": {"key": short(facts), "facts": facts},
        "precision": chosen,
        "refusal": refusal,
    }


def present(wanted: str = "auto") -> dict[str, Any]:
    """Device, environment and precision of this process, in the form of ``environment.json``.

    Call it before anything sets a flag: the flags of the moment are part of the key.
    """
    device, _ = this_device()
    facts = _facts(device)
    return {
        "device": device.to_json(),
        "environment": {"key": short(facts), "facts": facts},
        "precision": precision.choose(device, wanted),
    }


def check(expected: Mapping[str, Any]) -> dict[str, Any]:
    """:func:`present`, after making sure that it is what ``expected`` (the value of an ``environment.json``) says.

    Raises :class:`UserError` with what differs: a stage must not write under a path that names another place.
    """
    wanted_device = expected["device"]["id"]
    device, _ = this_device()
    if device.id != wanted_device:
        raise UserError(
            f"This job belongs on {wanted_device} and woke up on {device.id}: "
            "give the slot resources that only that GPU meets, or run the workflow again to begin results for this one."
        )
    now = present(expected["precision"])
    recorded: Mapping[str, str] = expected["environment"]["facts"]
    facts: Mapping[str, str] = now["environment"]["facts"]
    if now["environment"]["key"] != expected["environment"]["key"] or facts != recorded:
        changes = [
            f"{name} was {recorded.get(name, 'unset')} and is {facts.get(name, 'unset')}"
            for name in sorted({*recorded, *facts})
            if recorded.get(name) != facts.get(name)
        ]
        raise UserError(
            f"The environment changed since {expected['environment']['key']} was probed: "
            f"{'; '.join(changes) or 'its key does not fit its own facts'}. Run the workflow again: it probes anew."
        )
    return now


def this_device(index: int = 0) -> tuple[Device, str | None]:
    """The device that torch uses in this process, and its UUID where it is a GPU; starts CUDA there.

    ``index`` is torch's number of a GPU. Stages see only the one that they hold.
    """
    import torch

    found = nvml.visible(nvml.gpus())
    if not torch.cuda.is_available():
        if found:
            raise UserError(
                f"This machine has {found[0].device.name} (driver {nvml.driver_version()}), but torch {torch.__version__} "
                "cannot use it: install a CUDA build of torch that the driver supports, or set CUDA_VISIBLE_DEVICES= "
                "to rehearse on the CPU."
            )
        threads.settle()
        return this_cpu(), None
    properties = torch.cuda.get_device_properties(index)
    gpu = _same(str(properties.uuid), found)
    held = os.environ.get(HELD)
    if held not in (None, gpu.uuid):
        raise UserError(
            f"This job holds the lock of GPU {held}, but torch opened {gpu.uuid}: set CUDA_DEVICE_ORDER=PCI_BUS_ID, "
            "and start nothing on the GPU before the lock is held."
        )
    memory = gpu.device.memory_gb << 30
    device = cuda_device(properties.name, (properties.major, properties.minor), properties.multi_processor_count, memory)
    if device.id != gpu.device.id:
        raise UserError(
            f"The driver calls this GPU {gpu.device.id} and torch calls it {device.id}; "
            "without one id no result can be filed. Please report this with the output of nvidia-smi -q."
        )
    return device, gpu.uuid


def _same(uuid: str, found: list[nvml.Gpu]) -> nvml.Gpu:
    """The GPU among ``found`` that torch knows by ``uuid`` (without NVML's prefix; for a slice maybe its parent's)."""
    for gpu in found:
        if gpu.uuid.removeprefix("GPU-").removeprefix("MIG-") == uuid:
            return gpu
    for gpu in found:
        if gpu.parent.removeprefix("GPU-") == uuid:
            return gpu
    raise UserError(f"torch runs on GPU {uuid}, which the driver does not list: is NVML (libnvidia-ml) of this same driver?")


def _facts(device: Device) -> dict[str, str]:
    from exactgraph.environment.facts import collect  # imports torch and transformers: only where a stage runs

    return collect(device)
