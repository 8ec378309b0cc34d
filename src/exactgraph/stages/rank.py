"""``rank``: which candidates may be confirmed, and in which order.

Holds no timings, so that its bytes, and with them the confirmation, change only when the order or an accepted candidate does.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from exactgraph.candidates.registry import CONTROLS
from exactgraph.canonical import read_json, write_json
from exactgraph.protocol.ranking import rank
from exactgraph.stages.place import Place
from exactgraph.workflow.handoff import order_of


def run(folder: Path, code: str, names: list[str]) -> None:
    """Write ``ranking.json``, and ``order.json`` for the confirmation.

    ``names`` are the configured candidates in the ladder's order; the controls come on top.
    """
    place = Place(folder)
    validations: dict[str, dict[str, Any]] = {name: read_json(place.validation_path(name)) for name in [*CONTROLS, *names]}
    ranking = rank(place.frozen()["status"], place.protocol()["rehearsal"], validations)
    plans = {name: place.plan(name) for name in ranking["order"]}
    write_json(folder / "order.json", order_of(ranking, plans))
    write_json(folder / "ranking.json", {"stage": "rank", "code": code, **ranking})
