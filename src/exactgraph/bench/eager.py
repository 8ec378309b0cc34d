"""The reference: unmodified eager ``generate``, recorded twice in this process. It has to agree with itself first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from exactgraph.bench.memory import Peak, release
from exactgraph.bench.stand import Stand, first_line
from exactgraph.progress import Progress
from exactgraph.protocol.bandwidth import copy_bandwidth, step_bytes
from exactgraph.protocol.compare import Difference, compare_sets, first_difference
from exactgraph.protocol.timing import Repetitions
from exactgraph.protocol.trace import Trace, record_sets
from exactgraph.refusal import UserError
from exactgraph.runtime.attention import pinned

Sets = dict[str, list[Trace]]
RECORDINGS = 2


@dataclass(frozen=True)
class Reference:
    """Eager's answers. ``difference``: where it left them itself, or None. ``peak_mib``: what a pass took beside the model."""

    sets: Sets
    difference: Difference | None
    peak_mib: float | None


@dataclass(frozen=True)
class Floor:
    """What a decode step cannot beat: ``weight_bytes`` read once, at ``bandwidth`` bytes a second."""

    bandwidth: float
    weight_bytes: int

    def figures(self, tokens_a_second: float) -> dict[str, float]:
        """Weight bytes read a second in GB (1e9), and as a share of the copy bandwidth."""
        read = self.weight_bytes * tokens_a_second
        return {"gb_s": read / 1e9, "share_of_floor": read / self.bandwidth}


def record_reference(stand: Stand) -> Reference:
    """Record eager twice under the bench's attention backend. Raises ``UserError`` where that cannot run the model."""
    attention = stand.settings.attention
    total = RECORDINGS * len(stand.questions)
    try:
        with pinned(attention), Progress(f"eager ({attention})", total) as progress:
            sets, again = (
                record_sets(stand.model.generate, stand.asked, stand.device, progress.step) for _ in range(RECORDINGS)
            )
            difference = first_difference(compare_sets(sets, again))
            if difference is not None or not stand.timed:
                return Reference(sets, difference, None)
            return _with_peak(stand, sets)
    except RuntimeError as error:
        said = first_line(error)
        raise UserError(f"model.generate failed under attention {attention}: {said} Try another --attention.") from error


def _with_peak(stand: Stand, sets: Sets) -> Reference:
    """Another pass that keeps no logits, because those would be most of the memory; compared like every pass."""
    release(stand.device)
    peak = Peak(stand.device)
    plain = Repetitions(sets[stand.settings.prompt_set], stand.device)
    plain.untimed(stand.model.generate, stand.questions, 1)
    return Reference(sets, plain.difference, peak.mib())


def measure_floor(stand: Stand) -> Floor:
    """Needs a GPU; has it alone meanwhile."""
    try:
        with stand.hold.alone():
            floor = Floor(copy_bandwidth(stand.device), step_bytes(stand.model))
    except RuntimeError as error:
        raise UserError(f"The copy bandwidth cannot be measured beside this model: {first_line(error)}") from error
    release(stand.device)
    return floor


def eager_entry(reference: Reference, figures: dict[str, Any]) -> dict[str, Any]:
    """The reference as JSON; ``figures`` are those of all its timed runs."""
    entry: dict[str, Any] = {"tok_s": None, "first_token_ms": None, "gb_s": None, "share_of_floor": None}
    reproduces = reference.difference is None
    return {**entry, "reproduces": reproduces, "difference": reference.difference, "peak_mib": reference.peak_mib, **figures}
