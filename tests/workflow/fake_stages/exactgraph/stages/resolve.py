"""Resolves a pretended source: a folder to what it holds, anything else to itself."""

from __future__ import annotations

from argparse import Namespace

from exactgraph.machine import note

from exactgraph.canonical import digest, write_json
from exactgraph.sources.spec import parse, slug


def run(arguments: Namespace) -> None:
    spec = arguments.subject
    note("resolve", spec)
    facts: dict[str, object] = {"spec": spec}
    folder = parse(spec).folder
    if folder is not None:
        facts["files"] = {entry.name: entry.read_text() for entry in sorted(folder.iterdir())}
    write_json(arguments.out, {"source": spec, "model": slug(spec), "commit": digest(facts)[:12], "facts": facts})
