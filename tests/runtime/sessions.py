"""Sessions as the stages open them: planned and installed under one attention backend."""

from __future__ import annotations

from typing import Any

from exactgraph.candidates.base import Candidate, Context
from exactgraph.candidates.registry import candidate
from exactgraph.runtime.attention import pinned
from exactgraph.runtime.session import Session


def planned(model: Any, name: str, context: Context, attention: str) -> dict[str, Any]:
    """What candidate ``name`` decides under ``attention``."""
    with pinned(attention):
        return candidate(name).plan(model, context)


def open_session(model: Any, name: str | Candidate, context: Context, attention: str) -> Session:
    """A session of the candidate."""
    chosen = candidate(name) if isinstance(name, str) else name
    with pinned(attention):
        decisions = chosen.plan(model, context)
    return Session(model, chosen, decisions, context, attention)
