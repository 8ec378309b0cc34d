"""A small random model, opened as stages open one."""

from __future__ import annotations

import time
from pathlib import Path

import torch

from exactgraph.canonical import write_json
from exactgraph.environment.gpulock import Hold
from exactgraph.protocol.questions import Question
from exactgraph.protocol.trace import record_sets
from exactgraph.stages.loaded import Loaded
from exactgraph.stages.place import Place

CPU = torch.device("cpu")
REPETITIONS = 3
HELDOUT = [Question("heldout/0", (0, 7, 9, 30), 6), Question("heldout/1", (0, 21, 4), 6)]
LONG = [Question("long/0", (0, 3), 20)]


def make_loaded(folder: Path) -> Loaded:
    """A model of one layer with its questions and its frozen baseline in ``folder``, as in a rehearsal."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=64,
        initializer_range=0.3,
    )
    model = LlamaForCausalLM(config).eval()
    model.generation_config.eos_token_id = None
    questions = {"heldout": HELDOUT, "long": LONG}
    sets = record_sets(model.generate, questions, CPU, lambda name: None)
    write_json(folder / "frozen.json", {"status": "frozen", "attention": "default", "sets": sets})
    protocol = {"rehearsal": True, "repetitions": REPETITIONS, "timed": 0, "warmups": 0, "step_lengths": 64}
    hold = Hold(None, None)
    return Loaded(Place(folder), model, None, questions, protocol, {}, {}, CPU, hold, time.time())
