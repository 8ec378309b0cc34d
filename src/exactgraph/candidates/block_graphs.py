"""Graphs of several modules inside Hugging Face's own decode loop: the published ladder's upper rungs.

``C024`` replays post-attention norm and MLP as one graph. ``C025`` replays input norm, Q, K and V as one too; for prompts it
normalises before each projection. ``C026`` is the same with prompts normalised once. Rotary embedding, norms of Q and K,
cache, attention and output projection stay eager, and so does every shape but one token of one sequence.
"""

from __future__ import annotations

from typing import ClassVar

from exactgraph.candidates.grouped_qkv import GroupedQKV
from exactgraph.candidates.ladder import Build
from exactgraph.candidates.module_graphs import C023
from exactgraph.candidates.norm_mlp import NormMlp
from exactgraph.candidates.one_token import Forwards, one_token_forward
from exactgraph.models.layout import Block, Layout


class C024(C023):
    id = "C024"
    per_layer: ClassVar[tuple[str, ...]] = ("input norm", "post-attention norm and mlp")

    def of_block(self, block: Block, build: Build) -> Forwards:
        return {
            block.input_norm: one_token_forward(block.input_norm, build.hidden_size, build.capturer),
            **NormMlp(block, build.hidden_size, build.capturer).forwards,
        }


class C025(C023):
    id = "C025"
    per_layer: ClassVar[tuple[str, ...]] = ("input norm and q, k, v", "post-attention norm and mlp")
    shared_norm: ClassVar[bool] = False

    def of_block(self, block: Block, build: Build) -> Forwards:
        grouped = GroupedQKV(block, build.hidden_size, build.capturer, build.lending, shared_norm=self.shared_norm)
        return {**grouped.forwards, **NormMlp(block, build.hidden_size, build.capturer).forwards}

    def of_ends(self, layout: Layout, build: Build) -> Forwards:
        return {**build.lending.forwards, **super().of_ends(layout, build)}


class C026(C025):
    id = "C026"
    shared_norm = True


CANDIDATES = {C024.id: C024(), C025.id: C025(), C026.id: C026()}
