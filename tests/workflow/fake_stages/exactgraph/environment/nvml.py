"""The pretended machine's GPUs."""

from __future__ import annotations

import os

from exactgraph.machine import machine


def gpus() -> list[str]:
    return [machine()["gpu"]] * machine().get("gpus", 1) if machine()["gpu"] else []


def visible(found: list[str]) -> list[str]:
    return [] if os.environ.get("CUDA_VISIBLE_DEVICES") else found
