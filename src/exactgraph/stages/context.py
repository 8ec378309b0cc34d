"""What a stage tells a candidate. Apart from :mod:`exactgraph.stages.loaded`, because baselines know no candidates."""

from __future__ import annotations

from exactgraph.candidates.base import Context
from exactgraph.capture import capturer_for
from exactgraph.protocol.batches import batches_of
from exactgraph.protocol.questions import longest
from exactgraph.stages.loaded import Loaded


def context_of(loaded: Loaded) -> Context:
    """A fresh context, with a capturer of its own, for one candidate."""
    return Context(
        capturer=capturer_for(loaded.device),
        budget=loaded.protocol["step_lengths"],
        validated_length=longest(loaded.questions, "heldout"),
        confirmed_length=longest(loaded.questions, *loaded.questions),
        batches=batches_of(loaded.protocol),
    )
