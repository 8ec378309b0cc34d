"""One process of a baseline or a confirmation over 256 tokens, on a small model, with what is planted in it.

Arguments: ``baseline`` or ``confirm``, folder of the key, file to write, device, attention backend, name, number of the
process. It runs the real stage's code, but for where the model comes from. The name is a candidate's, ``eager``, or ``flaky``,
which is right in process 1 and wrong later.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from runtime_models import make_llama

from exactgraph.candidates.base import Candidate, Context, Decisions, Installation
from exactgraph.candidates.registry import candidate
from exactgraph.canonical import digest, write_json
from exactgraph.environment.gpulock import Hold
from exactgraph.protocol.questions import Question
from exactgraph.protocol.trace import record_sets
from exactgraph.runtime.attention import pinned
from exactgraph.stages import confirm
from exactgraph.stages.loaded import Loaded
from exactgraph.stages.place import Place

#: The step of the long answer at which the flaky one begins to differ: nothing shorter would show it.
WRONG_FROM = 200
TOKENS, FEW = 256, 8
QUESTIONS = {
    "heldout": [Question("heldout/0", (0, 7, 9, 30), FEW)],
    "long": [Question("long/0", tuple(range(2, 26)), TOKENS)],
}


def loaded(folder: Path, device: torch.device) -> Loaded:
    """The small model, opened as stages open one."""
    protocol = {"step_lengths": 2 * TOKENS}
    hold = Hold(None, None)
    return Loaded(Place(folder), make_llama(device), None, QUESTIONS, protocol, {}, {}, device, hold, time.time())


class Wavering:
    """The forward of an output head, called once a token, that is right until late in the long answer."""

    def __init__(self, head: Any) -> None:
        self._own, self._right = head.forward, FEW + WRONG_FROM

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        self._right -= 1
        logits: torch.Tensor = self._own(hidden)
        return logits if self._right >= 0 else logits.roll(1, -1)


class Flaky(Candidate):
    """Claims equal bits. What it does depends on the process, as with a kernel that is chosen by a race."""

    id = "flaky"

    def __init__(self, number: int) -> None:
        self._right = number == 1

    def plan(self, model: Any, context: Context) -> Decisions:
        return {}

    def install(self, model: Any, decisions: Decisions, context: Context) -> Installation:
        return Installation() if self._right else Installation(forwards={model.lm_head: Wavering(model.lm_head)})


def baseline(folder: Path, out: Path, device: torch.device, attention: str, name: str, number: int) -> None:
    """A record as the stage leaves it, of eager or of an eager that is flaky itself."""
    opened = loaded(folder, device)
    if name == "flaky" and number != 1:
        opened.model.lm_head.forward = Wavering(opened.model.lm_head)
    with pinned(attention):
        sets = record_sets(opened.model.generate, QUESTIONS, device, lambda done: None)
    record = {"run": number, "attention": attention, "weights_digest": digest("weights"), "texts": {}}
    write_json(out, {**record, "sets": sets, "traces_digest": digest(sets), "process": opened.process()})


def confirmed(folder: Path, out: Path, device: torch.device, name: str, number: int) -> None:
    """An attempt by the real stage."""

    @contextmanager
    def open_model(place: Place) -> Iterator[Loaded]:
        yield loaded(place.folder, device)

    confirm.open_model = open_model
    confirm.candidate = lambda name: Flaky(number) if name == Flaky.id else candidate(name)
    confirm.run_one(folder, name, out)


def spawn(*arguments: object) -> None:
    """Run this module in a fresh process, with ``sys.path`` as it is here."""
    program = f"import sys; sys.path[:] = {sys.path!r}; import fresh_process; fresh_process.main()"
    subprocess.run([sys.executable, "-c", program, *map(str, arguments)], check=True, timeout=280)


def main() -> None:
    stage, folder, out, device, attention, name, number = sys.argv[1:]
    on = torch.device(device)
    torch.set_num_threads(1)  # several of these run at once
    if stage == "baseline":
        baseline(Path(folder), Path(out), on, attention, name, int(number))
    else:
        confirmed(Path(folder), Path(out), on, name, int(number))
