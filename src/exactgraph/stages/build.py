"""``build``: what a candidate decides on this model and device, as its plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from exactgraph.candidates.registry import candidate
from exactgraph.canonical import write_json
from exactgraph.refusal import Refused
from exactgraph.stages.loaded import open_model
from exactgraph.stages.place import Place


def run(folder: Path, code: str, name: str) -> None:
    """Write ``plan.json``. A refusal is a result: the rest of the ladder goes on."""
    place = Place(folder)
    write_json(place.plan_path(name), {"stage": "build", "code": code, "candidate": name, **_plan(place, name)})


def _plan(place: Place, name: str) -> dict[str, Any]:
    chosen = candidate(name)
    plan: dict[str, Any] = {
        "claims": chosen.claims,
        "control": chosen.control,
        "timed": chosen.timed,
        "refusal": None,
        "decisions": {},
    }
    frozen = place.frozen()
    if frozen["status"] != "frozen":
        return {**plan, "status": "skipped"}
    skips = place.profile()["skip"]
    if name in skips:
        return {**plan, "status": "skipped", "refusal": {"reason": "cannot-matter", "sentence": skips[name]}}
    if not chosen.plans:
        return {**plan, "status": "built"}
    with open_model(place) as loaded:
        from exactgraph.runtime.attention import pinned
        from exactgraph.stages.context import context_of

        try:
            with pinned(frozen["attention"]):
                return {**plan, "status": "built", "decisions": chosen.plan(loaded.model, context_of(loaded))}
        except Refused as refused:
            return {**plan, "status": "refused", "refusal": refused.refusal.to_json()}
        except Exception as error:
            # Whatever a candidate dies of is a result; the rest of the ladder goes on.
            failure = {"reason": "plan-failed", "sentence": f"{type(error).__name__}: {error}"}
            return {**plan, "status": "failed", "refusal": failure}
