"""``model.exactgraph``: what is installed in a model, by which receipt, and how its calls ran."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exactgraph.capture.graph import Capturer
from exactgraph.refusal import Refusal
from exactgraph.runtime.ahead import Ahead
from exactgraph.runtime.session import Session


@dataclass(frozen=True)
class Plan:
    """What a receipt confirmed: the candidate with its decisions, under the attention backend of its baseline."""

    candidate: str
    grade: str
    attention: str
    decisions: dict[str, Any]


@dataclass(frozen=True)
class Handle:
    """An open installation. ``check_seconds`` is what the self-check took; ``ahead`` what is confirmed for windows, if any."""

    receipt: Path
    subject: str
    status: str
    plan: Plan
    session: Session
    capturer: Capturer
    check_seconds: float
    ahead: Ahead | None = None

    #: Why nothing is installed; never the case here.
    refusal = None

    @property
    def last(self) -> str:
        """How the last call ran."""
        call = self.session.last
        if call is None:
            return "no call yet"
        if call.refusal is not None:
            return f"eager ({call.refusal.reason}): {call.refusal.sentence}"
        steps = call.steps
        if steps is None:
            return f"through {self.plan.candidate}"
        why = f" ({steps.why})" if steps.eager else ""
        return f"through {self.plan.candidate}: {steps.captured} graph steps, {steps.eager} eager{why}"

    @property
    def counters(self) -> dict[str, Any]:
        """Calls and decode steps since installation, and what capture took: graphs, seconds, bytes of GPU memory.

        Steps are counted where our loop runs (``step``), with the sentence that says why the last eager ones did; the eager
        calls by theirs.
        """
        return {
            "calls": self.session.served,
            "eager_calls": {refusal.sentence: count for refusal, count in self.session.fallbacks.items()},
            "graph_steps": self.session.steps.captured,
            "eager_steps": self.session.steps.eager,
            "eager_steps_why": self.session.steps.why,
            "captures": self.capturer.graphs,
            "capture_seconds": round(self.capturer.seconds, 3),
            "bytes": self.capturer.bytes,
        }

    def __repr__(self) -> str:
        counts = self.counters
        lines = [
            f"exactgraph: {self.plan.candidate} ({self.plan.grade}) for {self.subject}, receipt {self.status}",
            f"  receipt   {self.receipt}",
            f"  plan      {self.plan.decisions}, attention {self.plan.attention}",
            *([] if self.ahead is None else [f"  windows   {self.ahead!r}"]),
            f"  calls     {counts['calls']} through {self.plan.candidate}, {sum(counts['eager_calls'].values())} eager",
            *(f"            {count} x {sentence}" for sentence, count in counts["eager_calls"].items()),
            f"  steps     {counts['graph_steps']} through graphs, {counts['eager_steps']} eager",
            f"  captures  {counts['captures']} in {counts['capture_seconds']} s, {counts['bytes']} bytes",
            f"  last      {self.last}",
        ]
        return "\n".join(lines)


@dataclass(frozen=True)
class Absent:
    """``model.exactgraph`` of a model that stays eager."""

    refusal: Refusal

    @property
    def last(self) -> str:
        return f"eager ({self.refusal.reason}): {self.refusal.sentence}"

    def __repr__(self) -> str:
        return f"exactgraph: nothing is installed ({self.refusal.reason}): {self.refusal.sentence}"
