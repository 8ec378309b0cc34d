"""``python -m tests.figures.memory --out FILE``: memory before and after a hundred rounds of optimise, generate, restore."""

from __future__ import annotations

import argparse
import gc
from pathlib import Path
from typing import Any

import torch
from tests.figures.models import deep_llama, optimised, prompt

import exactgraph
from exactgraph.canonical import write_json
from exactgraph.capture.graph import Graph
from exactgraph.environment.probe import present
from exactgraph.runtime.load import default_device
from exactgraph.runtime.session import Session

ROUNDS = 100


def rounds(count: int, device: torch.device, layers: int = 4) -> dict[str, Any]:
    """What is there before, after the first and after the last of ``count`` rounds: bytes of GPU memory, tensors, graphs."""
    model = deep_llama(device, layers)
    ids = prompt(model)
    model.generate(ids, max_new_tokens=4, do_sample=False)  # what the libraries keep for themselves
    gc.collect()
    gc.freeze()  # a collection then looks at what the rounds made, not at every object of the libraries
    try:
        before, seen = held(device), []
        for number in range(count):
            handle = optimised(model, ("step", "C026")[number % 2], budget=8, confirmed=32)
            model.generate(ids, max_new_tokens=6, do_sample=False)
            if handle.session.served != 1:
                raise RuntimeError(f"Round {number} ran eager, so it shows nothing: {handle.last}")
            del handle
            exactgraph.restore(model)
            seen.append(held(device))
    finally:
        gc.unfreeze()
    return {"rounds": count, "before": before, "after_two": seen[1], "after": seen[-1]}


def held(device: torch.device) -> dict[str, int]:
    """Live tensors, graphs and sessions that came since; on a GPU also bytes that torch has allocated and reserved."""
    gc.collect()
    things = gc.get_objects()
    # type() and not isinstance: that asks lazy modules for their class, and they import what they stand for.
    kinds = [type(thing) for thing in things]
    counts = {
        "tensors": sum(issubclass(kind, torch.Tensor) for kind in kinds),
        "graphs": sum(issubclass(kind, Graph) for kind in kinds),
        "sessions": sum(kind is Session for kind in kinds),
    }
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        counts |= {"allocated": torch.cuda.memory_allocated(device), "reserved": torch.cuda.memory_reserved(device)}
    return counts


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.figures.memory", description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    out: Path = parser.parse_args().out
    found = present("auto")
    figures = rounds(ROUNDS, default_device())
    write_json(out, {"device": found["device"], "environment": found["environment"], **figures})


if __name__ == "__main__":
    main()
