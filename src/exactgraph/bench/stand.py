"""The test stand: a GPU held, the model loaded, the questions ready. Like :mod:`exactgraph.stages.loaded`, without a key."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from exactgraph.bench.locate import Located
from exactgraph.bench.settings import Settings
from exactgraph.candidates.base import Context
from exactgraph.capture import capturer_for
from exactgraph.environment import nvml
from exactgraph.environment.device import this_cpu
from exactgraph.environment.gpulock import Hold, hold_gpu
from exactgraph.environment.probe import present
from exactgraph.protocol.questions import Question, longest, questions
from exactgraph.protocol.tasks import stop_at_length
from exactgraph.refusal import UserError
from exactgraph.runtime.attention import BACKENDS, DEFAULT
from exactgraph.runtime.load import default_device, load_model, load_tokenizer
from exactgraph.sources.spec import allows_code, class_of


@dataclass(frozen=True)
class Stand:
    """A loaded model with its questions. ``timed``: whether speed and memory are measured, which emulated capture is not."""

    settings: Settings
    model: Any
    questions: list[Question]
    environment: dict[str, Any]
    device: torch.device
    hold: Hold
    timed: bool

    def context(self) -> Context:
        """A fresh context, with a capturer of its own, for one candidate. No longer sequence follows than those asked here."""
        length = longest(self.asked, self.settings.prompt_set)
        return Context(capturer_for(self.device), self.settings.step_lengths, length, length)

    @property
    def asked(self) -> dict[str, list[Question]]:
        """The questions as a set, for recording."""
        return {self.settings.prompt_set: self.questions}


@contextmanager
def open_stand(located: Located, settings: Settings) -> Iterator[Stand]:
    """Hold the first visible GPU, or one like it that is free, and load the model; on the CPU where there is none."""
    if settings.attention not in (DEFAULT, *BACKENDS):
        known = ", ".join((DEFAULT, *BACKENDS))
        raise UserError(f"There is no attention backend {settings.attention!r}. Known are {known}.")
    found = nvml.visible(nvml.gpus())
    with hold_gpu(found[0].device.id if found else this_cpu().id) as hold:
        environment = present(settings.dtype)
        device = default_device()
        source = located.manifest["source"] if located.manifest is not None else None
        remote_code = source is not None and allows_code(source)
        tokenizer = load_tokenizer(located.folder, remote_code) if located.has_text else None
        model = load_model(located.folder, environment["precision"], device, remote_code, source and class_of(source))
        protocol = settings.protocol(environment["precision"], located.has_windows)
        asked = questions(protocol, located.folder, tokenizer, model)
        _check_length(model, longest(asked, settings.prompt_set))
        stop_at_length(model)
        yield Stand(settings, model, asked[settings.prompt_set], environment, device, hold, timed=device.type == "cuda")


def first_line(error: Exception) -> str:
    """An error's own words, without the pages that some libraries add."""
    return str(error).strip().partition("\n")[0]


def _check_length(model: Any, length: int) -> None:
    most = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if most is not None and length > most:
        raise UserError(f"The longest answer needs {length} tokens; the model has {most} positions. Lower --new-tokens.")
