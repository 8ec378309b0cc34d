"""A seeded speech model, opened as stages open one."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

from exactgraph.canonical import write_json
from exactgraph.environment.gpulock import Hold
from exactgraph.protocol.questions import questions
from exactgraph.protocol.tasks import stop_at_length
from exactgraph.protocol.trace import record_sets
from exactgraph.runtime.load import load_model
from exactgraph.sources.random_weights import write_model
from exactgraph.stages.loaded import Loaded
from exactgraph.stages.place import Place

CPU = torch.device("cpu")
LENGTHS = {"heldout": 8, "long": 20}


def make_heard(root: Path) -> Loaded:
    """A Whisper with windows and its frozen baseline, as in a rehearsal."""
    folder = root / "model"
    folder.mkdir()
    write_model("tiny-whisper", 0, folder)
    model = load_model(folder, "fp32", CPU)
    stop_at_length(model)
    sets = {name: {"new_tokens": count, "prompts": [{"id": f"{name}/0", "seeded": 0}]} for name, count in LENGTHS.items()}
    protocol: dict[str, Any] = {"task": "transcribe", "dtype": "fp32", "sets": sets}
    protocol |= {"rehearsal": True, "repetitions": 2, "timed": 0, "warmups": 0, "step_lengths": 64}
    asked = questions(protocol, folder, None, model)
    traces = record_sets(model.generate, asked, CPU, lambda name: None)
    write_json(root / "frozen.json", {"status": "frozen", "attention": "default", "sets": traces})
    return Loaded(Place(root), model, None, asked, protocol, {}, {}, CPU, Hold(None, None), time.time())
