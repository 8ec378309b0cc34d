"""The control ``null``: eager itself. It must come out exact and not faster; anything else says that timing is broken."""

from __future__ import annotations

from typing import Any

from exactgraph.candidates.base import Candidate, Context, Decisions, Installation


class Null(Candidate):
    id = "null"
    control = True
    plans = False

    def install(self, model: Any, decisions: Decisions, context: Context) -> Installation:
        return Installation()


CANDIDATES = {Null.id: Null()}
