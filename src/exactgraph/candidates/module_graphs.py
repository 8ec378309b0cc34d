"""Module graphs inside Hugging Face's own decode loop: the published ladder's first two rungs.

``C022`` captures the MLP of each layer for one token of one sequence. ``C023`` captures the norms, the final norm and the
output head as well, each as a graph of its own. Attention stays eager, and so does every other shape.
"""

from __future__ import annotations

from typing import ClassVar

from exactgraph.candidates.ladder import Build, Ladder
from exactgraph.candidates.one_token import Forwards, one_token_forward
from exactgraph.models.layout import Block, Layout


class C022(Ladder):
    id = "C022"
    per_layer: ClassVar[tuple[str, ...]] = ("mlp",)

    def of_block(self, block: Block, build: Build) -> Forwards:
        # The output is read by the residual addition of the same layer, so nothing that reaches a caller aliases it.
        return {block.mlp: one_token_forward(block.mlp, build.hidden_size, build.capturer)}


class C023(C022):
    id = "C023"
    per_layer: ClassVar[tuple[str, ...]] = ("input norm", "post-attention norm", "mlp")
    once: ClassVar[tuple[str, ...]] = ("final norm", "head")

    def of_block(self, block: Block, build: Build) -> Forwards:
        # The outputs of the norms are read by the projections and copied into the MLP's own buffer.
        return {
            block.input_norm: one_token_forward(block.input_norm, build.hidden_size, build.capturer),
            block.post_norm: one_token_forward(block.post_norm, build.hidden_size, build.capturer),
            **super().of_block(block, build),
        }

    def of_ends(self, layout: Layout, build: Build) -> Forwards:
        # Both reach callers: the last hidden state and the logits.
        return {
            module: one_token_forward(module, build.hidden_size, build.capturer, copied=True)
            for module in (layout.final_norm, layout.head)
        }


CANDIDATES = {C022.id: C022(), C023.id: C023()}
