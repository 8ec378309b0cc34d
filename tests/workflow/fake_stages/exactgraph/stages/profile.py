"""Profiles the pretended step: the last configured candidate promises most, and the machine says which cannot matter."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from exactgraph.machine import machine, note

from exactgraph.canonical import write_json
from exactgraph.workflow.handoff import skips_of


def run(arguments: Namespace) -> None:
    note("profile", "")
    folder = Path(arguments.subject)
    names = [name for name in arguments.candidates.split(",") if name]
    skip = dict.fromkeys(machine().get("pointless", []), "cannot matter")
    profile = {"stage": "profile", "code": arguments.code, "order": names[::-1], "skip": skip}
    write_json(folder / "profile.json", profile)
    write_json(folder / "skips.json", skips_of(profile))
