"""What a loaded model finds in this process, in the words of a receipt: device, environment, precision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from exactgraph.environment.device import this_cpu
from exactgraph.environment.facts import collect
from exactgraph.environment.probe import this_device
from exactgraph.runtime.load import DTYPES


@dataclass(frozen=True)
class Here:
    """``device`` is a device id; ``precision`` is None for a dtype that no receipt speaks of."""

    device: str
    facts: dict[str, str]
    precision: str | None


def here(model: Any) -> Here:
    """Where ``model`` is. Changes nothing in the process."""
    device: torch.device = model.device
    found = this_device(device.index)[0] if device.type == "cuda" else this_cpu()
    facts = collect(found)
    if found.kind == "cpu":
        # Stages set the number of threads; a user's process keeps its own, which changes the order of additions.
        facts["threads"] = str(torch.get_num_threads())
    return Here(found.id, facts, next((name for name, dtype in DTYPES.items() if dtype == model.dtype), None))
