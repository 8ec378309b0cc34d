"""Makes a pretended model folder and its manifest."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from exactgraph.machine import note

from exactgraph.canonical import digest, read_json, write_json


def run(arguments: Namespace) -> None:
    resolved = read_json(Path(arguments.subject))
    note("download", resolved["model"])
    write_json(arguments.out_dir / "weights.json", resolved["facts"])
    write_json(Path(arguments.manifest), {"commit": resolved["commit"], "weights_digest": digest(resolved["facts"])})
