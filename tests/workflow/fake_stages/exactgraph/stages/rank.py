"""Ranks the pretended candidates."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from exactgraph.machine import note

from exactgraph.candidates.registry import CONTROLS
from exactgraph.canonical import read_json, write_json
from exactgraph.workflow.handoff import order_of


def run(arguments: Namespace) -> None:
    note("rank", "")
    folder = Path(arguments.subject)
    names = [*CONTROLS, *(name for name in arguments.candidates.split(",") if name)]
    plans = {name: read_json(folder / "candidates" / name / "plan.json") for name in names}
    validations = {name: read_json(folder / "candidates" / name / "validation.json") for name in names}
    order = [name for name in names if validations[name]["status"] == "exact"]
    verdicts = {name: {"verdict": validations[name]["status"], "code": plans[name]["code"]} for name in names}
    ranking = {"stage": "rank", "code": arguments.code, "status": None, "order": order, "candidates": verdicts}
    write_json(folder / "ranking.json", ranking)
    write_json(folder / "order.json", order_of(ranking, plans))
