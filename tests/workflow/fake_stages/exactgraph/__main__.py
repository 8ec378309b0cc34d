"""Runs one pretended stage."""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path

from exactgraph.workflow.parent import die_with_parent


def main() -> None:
    die_with_parent()
    parser = argparse.ArgumentParser()
    parser.add_argument("stage")
    parser.add_argument("subject", nargs="?")
    for option in ("--slot", "--visible", "--manifest", "--candidate", "--candidates", "--run", "--jobs", "--code"):
        parser.add_argument(option)
    for option in ("--out", "--out-dir", "--probes", "--config"):
        parser.add_argument(option, type=Path)
    arguments = parser.parse_args()
    import_module(f"exactgraph.stages.{arguments.stage}").run(arguments)


if __name__ == "__main__":
    main()
