"""The folder of a real key on this machine, as the first stages leave it: a tiny model, its environment, a protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from exactgraph.canonical import short, write_json
from exactgraph.environment.probe import present
from exactgraph.runtime.load import default_device
from exactgraph.sources.download import download
from exactgraph.sources.resolve import resolve
from exactgraph.stages.place import Place
from exactgraph.workflow.keys import Key

TINY = "random:tiny-llama?seed=0"


def protocol(new_tokens: int = 4, dtype: str = "fp32") -> dict[str, Any]:
    def asked(name: str) -> dict[str, Any]:
        return {"new_tokens": new_tokens, "prompts": [{"id": f"{name}/0", "seeded": 0}]}

    return {
        "dtype": dtype,
        "batch": 1,
        "sampling": "greedy",
        "stop": "length",
        "rehearsal": default_device() == torch.device("cpu"),
        "warmups": 0,
        "repetitions": 1,
        "timed": 0,
        "baselines": 2,
        "attention_preference": ["math"],
        "step_lengths": 64,
        "sets": {name: asked(name) for name in ("heldout", "confirm", "long")},
    }


def make(root: Path, source: str = TINY, new_tokens: int = 4, device: str | None = None) -> Place:
    """The place of a key below ``root``; ``device`` names another device than this machine's."""
    environment = present()
    if device is not None:
        environment["device"] = environment["device"] | {"id": device}
    resolved, whole = resolve(source), protocol(new_tokens, environment["precision"])
    facts = (resolved["model"], resolved["commit"], environment["device"]["id"], environment["environment"]["key"])
    key = Key(*facts, short(whole), root=root)
    download(resolved, key.model_folder / "model", key.model_folder / "model.json")
    write_json(key.environment_folder / "environment.json", environment)
    write_json(key.folder / "protocol.json", whole)
    return Place(key.folder)
