"""A process that plays sequences: ``python -m tests.fuzz.worker (eager|optimised) SEQUENCES OUT``.

``eager`` never imports a session. Both write, for each sequence, what every event of it gave.
"""

from __future__ import annotations

import gc
import logging
import sys
import warnings
from pathlib import Path
from random import Random
from typing import Any

import torch
from tests.fuzz.calls import CALLS
from tests.fuzz.mutations import MUTATIONS
from tests.fuzz.results import Result
from tests.fuzz.sequences import Event, Sequence
from tests.fuzz.world import World
from transformers.utils import logging as transformers_logging

from exactgraph.canonical import read_json, write_json
from exactgraph.runtime.load import default_device


def play(sequences: list[Sequence], optimised: bool) -> list[Result]:
    """Every sequence's results, and with ``optimised`` how each of its calls ran."""
    return [_play(sequence, optimised) for sequence in sequences]


def _play(sequence: Sequence, optimised: bool) -> Result:
    world = World(sequence["family"], default_device())
    session: Any = None
    if optimised:
        from tests.fuzz.optimised import Optimised

        session = Optimised(world, sequence)
    results: list[Any] = []
    try:
        with world.undo:
            for event in sequence["events"]:
                results.append(_event(event, world, session))
    finally:
        if session is not None:
            session.close()
    del world
    gc.collect()
    return {"seed": sequence["seed"], "results": results, "paths": session.paths if session is not None else []}


def _event(event: Event, world: World, session: Any) -> Any:
    if event["do"] == "generate":
        return CALLS[event["kind"]](world, Random(event["seed"]))
    if event["do"] == "mutate":
        world.undo.enter_context(MUTATIONS[event["kind"]](world, Random(event["seed"])))
    elif event["do"] == "restore":
        world.undo.pop_all().close()
    elif session is not None:
        session.reopen()
    return None


def main(how: str, asked: Path, out: Path) -> None:
    """One fresh process's part."""
    warnings.simplefilter("ignore")
    transformers_logging.set_verbosity_error()
    logging.getLogger("exactgraph").setLevel(logging.ERROR)
    torch.set_num_threads(1)  # on a CPU the number is part of the result, and many of these processes work at once
    gc.collect()
    gc.freeze()  # a collection after each sequence then looks at what the sequence made
    results = play(read_json(asked), optimised=how == "optimised")
    if how == "eager" and "exactgraph.runtime.session" in sys.modules:
        raise RuntimeError("The eager process imported a session, so it proves nothing.")
    write_json(out, results)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
