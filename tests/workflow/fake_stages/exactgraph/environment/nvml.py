"""The pretended machine's GPUs."""

from __future__ import annotations

import os
from collections.abc import Mapping

from exactgraph.machine import machine

Gpu = str


def gpus() -> list[Gpu]:
    return [f"{machine()['gpu']} {index}" for index in range(machine().get("gpus", 1))] if machine()["gpu"] else []


def visible(found: list[Gpu], variables: Mapping[str, str] = os.environ) -> list[Gpu]:
    wanted = variables.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return found
    return [gpu for gpu in found if gpu.rpartition(" ")[2] in wanted.split(",")]
