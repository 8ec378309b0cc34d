"""Figures in parts: each part in a process of its own, groups of parts one after the other, and one file of what they found.

A script names its parts and hands over to :meth:`Figures.main`, which is its command line.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from exactgraph.candidates.base import Context
from exactgraph.candidates.registry import candidate
from exactgraph.canonical import digest, read_json, write_json
from exactgraph.environment.probe import present
from exactgraph.protocol.compare import compare_sets, first_difference
from exactgraph.protocol.questions import Question
from exactgraph.protocol.trace import Trace, record_sets
from exactgraph.runtime.attention import pinned
from exactgraph.runtime.session import Session
from exactgraph.sources.download import download
from exactgraph.sources.resolve import resolve
from exactgraph.workflow.stage_digest import stage_digest

Result = dict[str, Any]
Sets = dict[str, list[Trace]]


@dataclass(frozen=True)
class Figures:
    """Figures of one candidate, by the script ``script``.

    ``load`` makes what parts are given from a model's folder and the folder of all results. ``order``: groups of parts, whose
    members run side by side; ``name.2`` is the part ``name`` in another process. A result with ``sets`` holds the traces of a
    reference for later groups, and goes into the file as a digest.
    """

    script: str
    candidate: str
    precision: str
    load: Callable[[Path, Path], Any]
    parts: dict[str, Callable[[Any], Result]]
    order: tuple[tuple[str, ...], ...]

    def main(self) -> None:
        """Run all parts, or with ``--part`` one, on a source or a model's folder."""
        arguments = argparse.ArgumentParser()
        arguments.add_argument("model")
        arguments.add_argument("--out", type=Path, required=True)
        arguments.add_argument("--part")
        given = arguments.parse_args()
        if given.part:
            self._one(given.part, Path(given.model), given.out)
            return
        with tempfile.TemporaryDirectory() as scratch:
            folder, shared = Path(scratch) / "model", Path(scratch) / "shared"
            download(resolve(given.model), folder, folder.parent / "model.json")
            shared.mkdir()
            code = stage_digest("validate", self.candidate)
            facts = {"source": given.model, "code": code, "environment": present(self.precision)}
            for parts in self._all(folder, shared):
                write_json(given.out, {**facts, "parts": parts})
        print(json.dumps(parts, indent=1))

    def _one(self, part: str, folder: Path, shared: Path) -> None:
        result = self.parts[part.partition(".")[0]](self.load(folder, shared))
        write_json(shared / f"{part}.json", result)

    def _all(self, folder: Path, shared: Path) -> Iterator[Result]:
        """The results so far, after each group."""
        for group in self.order:
            command = [sys.executable, self.script, str(folder), "--out", str(shared), "--part"]
            running = {part: subprocess.Popen([*command, part]) for part in group}
            for part, process in running.items():
                if process.wait():
                    write_json(shared / f"{part}.json", {"failed": process.returncode})
            results = {path.stem: read_json(path) for path in sorted(shared.iterdir())}
            yield {part: {"traces_digest": digest(result)} if "sets" in result else result for part, result in results.items()}


@contextmanager
def opened(
    model: Any, name: str, planning: Context, context: Context, attention: str
) -> Iterator[tuple[Session, dict[str, Any]]]:
    """A session of the candidate ``name``, planned under the same pin, and the plan.

    What the plan captures counts for ``planning``, what the session does for ``context``; they may be one.
    """
    chosen = candidate(name)
    with pinned(attention):
        plan = chosen.plan(model, planning)
    with Session(model, chosen, plan, context, attention) as session:
        yield session, plan


def cost(context: Context) -> Result:
    """What was captured so far."""
    capturer = context.capturer
    return {"graphs": capturer.graphs, "capture_s": capturer.seconds, "graph_mib": capturer.bytes / 2**20}


def compared(session: Session, asked: dict[str, list[Question]], expected: Sets, device: torch.device) -> Result:
    """How many answers, and how many logits, of ``session`` are those of ``expected``."""
    sets = record_sets(session.generate, asked, device, say)
    comparison = compare_sets(expected, sets)
    counts = {key: comparison[key] for key in ("matches", "of", "logits_equal", "logits_of")}
    steps = {"captured_steps": session.steps.captured, "eager_steps": session.steps.eager}
    return {**counts, "difference": first_difference(comparison), **steps}


def say(done: str) -> None:
    """Progress, for whoever watches."""
    print(done, file=sys.stderr, flush=True)
