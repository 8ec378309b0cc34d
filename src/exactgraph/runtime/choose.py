"""Which receipt a model is optimised by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from exactgraph.canonical import read_json
from exactgraph.receipts.schema import problems
from exactgraph.receipts.verify import verify_evidence
from exactgraph.refusal import Refusal
from exactgraph.runtime.fit import AGAIN, differences
from exactgraph.runtime.fitness import unfit
from exactgraph.runtime.guard import around
from exactgraph.runtime.here import here
from exactgraph.runtime.not_optimized import NotOptimized
from exactgraph.runtime.store import user_store
from exactgraph.runtime.weights import Weights
from exactgraph.stages.place import Place


def choose(paths: list[Path], model: Any) -> Path:
    """The first of these receipts that speaks of ``model`` here and is true to its evidence; the fastest first.

    Raises ``NotOptimized`` with what differs in the receipt that comes nearest.
    """
    readable = {path: predicate for path in paths if (predicate := _predicate(path)) is not None}
    if not readable:
        sentence = (
            f"There is no receipt ({len(paths)} files looked at). {AGAIN} Or fetch one: exactgraph import FILE {user_store()}."
        )
        raise NotOptimized("no-receipt", sentence)
    refusal = unfit(model) or around(model.device)
    if refusal is not None:  # weights that are offloaded cannot even be digested
        raise NotOptimized.of(refusal)
    present, weights = here(model), Weights(model)
    refusals: list[tuple[int, Refusal]] = []
    for path in sorted(readable, key=lambda path: -_ratio(readable[path])):
        found = differences(path, readable[path], model, present)
        # What is cheap to see first; weights only where they can still decide.
        refusal = found[0] if found else _untrue(path) or _weights(path, weights)
        if refusal is None:
            return path
        refusals.append((len(found), refusal))
    raise NotOptimized.of(min(refusals, key=lambda refused: refused[0])[1])


def _predicate(path: Path) -> dict[str, Any] | None:
    """What the receipt says, or None for a file that is none of this exactgraph's receipts."""
    try:
        receipt: dict[str, Any] = read_json(path)
    except (OSError, orjson.JSONDecodeError):
        return None
    predicate: dict[str, Any] = receipt["predicate"] if not problems(receipt) else {}
    return predicate or None


def _ratio(predicate: dict[str, Any]) -> float:
    """How much faster than eager the confirmed candidate was; 0 where nothing was timed or confirmed."""
    confirmed = predicate["candidates"].get(predicate["confirmation"]["confirmed"])
    return float(confirmed["timing"]["ratio"]) if confirmed and confirmed["timing"] else 0.0


def _weights(path: Path, weights: Weights) -> Refusal | None:
    place = Place(path.absolute().parent)
    return weights.differ(place.manifest(), place.model_dir)


def _untrue(path: Path) -> Refusal | None:
    """Why the receipt is not to be trusted, or None."""
    for line in verify_evidence(path).lines:
        if line.startswith("no: "):
            sentence = f"The receipt {path} does not verify: {line.removeprefix('no: ')}. exactgraph verify {path} says more."
            return Refusal("unverified", sentence)
    return None
