"""A confirmed configuration in the user's own program: ``exactgraph.optimize(model)``.

The receipt is verified from its evidence, held against model, device and environment of this process, and what it confirmed is
installed and checked. Where anything is missing or differs, the model stays eager and the program hears why.
"""

from __future__ import annotations

import gc
import logging
import os
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch

from exactgraph.candidates.base import Context
from exactgraph.candidates.registry import candidate
from exactgraph.canonical import read_json
from exactgraph.capture import capturer_for
from exactgraph.protocol.batches import batches_of
from exactgraph.protocol.window_ways import asked_of
from exactgraph.refusal import Refused, UserError
from exactgraph.runtime.ahead import Ahead
from exactgraph.runtime.choose import choose
from exactgraph.runtime.handle import Absent, Handle, Plan
from exactgraph.runtime.not_optimized import NotOptimized, NotOptimizedWarning
from exactgraph.runtime.selfcheck import first_question, self_check
from exactgraph.runtime.session import Session
from exactgraph.runtime.store import receipts_in
from exactgraph.stages.place import Place

Model = TypeVar("Model")
_log = logging.getLogger(__name__)
_INSTALLING = threading.Lock()


def optimize(model: Model, receipts: str | os.PathLike[str] | None = None, require: bool = False) -> Model:
    """``model``, with what a receipt confirmed for it installed; ``model.generate`` keeps its arguments and its results.

    ``receipts`` is a folder of receipts, a receipt, or a file that ``exactgraph export`` wrote; by default ``artifacts/`` in
    the current folder and then the user's own folder. Where no receipt speaks of this model on this device in this
    environment, the model stays eager with a :class:`NotOptimizedWarning`, or with ``require`` :class:`NotOptimized` is
    raised. ``model.exactgraph`` says what is installed, or why nothing is.
    """
    whole: Any = model
    with _INSTALLING:
        restore(model)
        try:
            with receipts_in(None if receipts is None else Path(receipts)) as paths:
                handle = _install(whole, choose(paths, whole))
        except (Refused, UserError) as error:
            refused = _not_optimized(error)
            if require:
                raise refused from error
            whole.exactgraph = Absent(refused.refusal)
            _say(f"The model stays eager: {refused}")
            return model
        whole.exactgraph = handle
    _log.info("%r", handle)
    if handle.status == "rehearsal":
        _say(f"{handle.plan.candidate} is installed from a rehearsal on a CPU: results are exact, and nothing is faster.")
    return model


def restore(model: Model) -> Model:
    """``model`` as it was before :func:`optimize`, with all memory of the installation given back."""
    handle = vars(model).get("exactgraph")
    if isinstance(handle, Handle):
        handle.session.close()
    vars(model).pop("exactgraph", None)
    if isinstance(handle, Handle):
        cuda = handle.session.model.device.type == "cuda"
        del handle
        # Graphs and the functions that they keep refer to each other.
        gc.collect()
        if cuda:
            torch.cuda.empty_cache()
    return model


@contextmanager
def optimized(model: Model, receipts: str | os.PathLike[str] | None = None, require: bool = False) -> Iterator[Model]:
    """:func:`optimize` for a block, :func:`restore` after it."""
    try:
        yield optimize(model, receipts, require)
    finally:
        restore(model)


def _install(model: Any, path: Path) -> Handle:
    place = Place(Path(os.path.abspath(path)).parent)
    predicate, frozen = read_json(path)["predicate"], place.frozen()
    name = predicate["confirmation"]["confirmed"]
    plan = Plan(name, predicate["candidates"][name]["grade"], frozen["attention"], place.plan(name)["decisions"])
    question = first_question(place, model)
    context = _context(place.protocol(), frozen, model.device)
    session = Session(model, candidate(name), plan.decisions, context, plan.attention)
    decided, asked = predicate["confirmation"].get("windows"), asked_of(place.protocol())
    started = time.perf_counter()
    try:
        self_check(session, question, frozen, plan.grade)
        seconds = time.perf_counter() - started
        ahead = Ahead(model, decided, asked, plan.attention) if decided and asked else None
    except BaseException:
        session.close()
        raise
    subject = f"{predicate['model']['model']}@{predicate['model']['commit']}"
    return Handle(path, subject, predicate["status"], plan, session, context.capturer, seconds, ahead)


def _context(protocol: dict[str, Any], frozen: dict[str, Any], device: torch.device) -> Context:
    """What stages tell the candidate; the traces have the lengths of the prompts, so no tokenizer is needed for it."""
    # The last token of an answer is chosen and not fed.
    longest = {
        name: max(trace["prompt_tokens"] + len(trace["tokens"]) - 1 for trace in traces)
        for name, traces in frozen["sets"].items()
    }
    return Context(
        capturer_for(device), protocol["step_lengths"], longest["heldout"], max(longest.values()), batches_of(protocol)
    )


def _not_optimized(error: Refused | UserError) -> NotOptimized:
    if isinstance(error, NotOptimized):
        return error
    return NotOptimized.of(error.refusal) if isinstance(error, Refused) else NotOptimized("unusable", str(error))


def _say(sentence: str) -> None:
    _log.warning(sentence)
    # At the line that called optimize.
    warnings.warn(sentence, NotOptimizedWarning, stacklevel=3)
