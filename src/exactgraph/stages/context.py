"""What a stage tells a candidate. Apart from :mod:`exactgraph.stages.bench`, because baselines know no candidates."""

from __future__ import annotations

from exactgraph.candidates.base import Context
from exactgraph.capture import capturer_for
from exactgraph.protocol.questions import longest
from exactgraph.stages.bench import Bench


def context_of(bench: Bench) -> Context:
    """A fresh context, with a capturer of its own, for one candidate."""
    return Context(
        capturer=capturer_for(bench.device),
        budget=bench.protocol["step_lengths"],
        validated_length=longest(bench.questions, "heldout"),
        confirmed_length=longest(bench.questions, *bench.questions),
    )
