"""What the rungs of the published ladder have in common: forwards for each layer and for the ends of the model."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from exactgraph.candidates.base import Candidate, Context, Decisions, Installation
from exactgraph.candidates.lending import Lending
from exactgraph.candidates.one_token import Forwards
from exactgraph.capture.graph import Capturer
from exactgraph.models.layout import Block, Layout, layout_of


@dataclass(frozen=True)
class Build:
    """What the graphs of one model are made with."""

    hidden_size: int
    capturer: Capturer
    lending: Lending


class Ladder(Candidate):
    """A candidate that stands in for modules of a decoder in Llama's layout.

    ``per_layer`` and ``once`` name what is captured, one name a graph, in the order of execution. Graphs are captured in that
    order too, layer by layer.
    """

    per_layer: ClassVar[tuple[str, ...]]
    once: ClassVar[tuple[str, ...]] = ()

    def plan(self, model: Any, context: Context) -> Decisions:
        layout, build = _begun(model, context)
        # One capture of each kind shows whether these modules can be captured at all, before a validation is spent on it.
        self.of_block(layout.blocks[0], build)
        self.of_ends(layout, build)
        return {
            "captured": [*self.per_layer, *self.once],
            "graphs": len(self.per_layer) * len(layout.blocks) + len(self.once),
            "shape": [1, 1, layout.hidden_size],
        }

    def install(self, model: Any, decisions: Decisions, context: Context) -> Installation:
        layout, build = _begun(model, context)
        forwards: Forwards = {}
        for block in layout.blocks:
            forwards |= self.of_block(block, build)
        forwards |= self.of_ends(layout, build)
        return Installation(forwards=forwards)

    @abstractmethod
    def of_block(self, block: Block, build: Build) -> Forwards:
        """The forwards for one layer, captured in the order in which they run."""

    def of_ends(self, layout: Layout, build: Build) -> Forwards:
        """The forwards for what runs once a step."""
        return {}


def _begun(model: Any, context: Context) -> tuple[Layout, Build]:
    layout = layout_of(model)
    lending = Lending(layout.decoder, model.config._attn_implementation)
    return layout, Build(layout.hidden_size, context.capturer, lending)
