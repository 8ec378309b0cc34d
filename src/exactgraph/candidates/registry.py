"""Where each candidate lives. Modules are named, not imported: an edit to one family is not an edit to the others."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from exactgraph.refusal import UserError

if TYPE_CHECKING:
    from exactgraph.candidates.base import Candidate

CONTROLS = ("null", "wrong-ulp", "wrong-late")

MODULES: dict[str, str] = {
    "null": "exactgraph.candidates.null",
    "wrong-ulp": "exactgraph.candidates.wrong_ulp",
    "wrong-late": "exactgraph.candidates.wrong_late",
    "C022": "exactgraph.candidates.module_graphs",
    "C023": "exactgraph.candidates.module_graphs",
    "C024": "exactgraph.candidates.block_graphs",
    "C025": "exactgraph.candidates.block_graphs",
    "C026": "exactgraph.candidates.block_graphs",
    "step": "exactgraph.candidates.step",
    "encdec-step": "exactgraph.candidates.encdec_step",
    "encdec-compile": "exactgraph.candidates.encdec_compile",
    "static": "exactgraph.candidates.compiled",
    "static-compile": "exactgraph.candidates.compiled",
    "compile": "exactgraph.candidates.compiled",
    "static-step-compile": "exactgraph.candidates.compiled_step",
}


def candidate(name: str) -> Candidate:
    """The candidate called ``name``."""
    if name not in MODULES:
        known = ", ".join(key for key in MODULES if key not in CONTROLS)
        raise UserError(f"There is no candidate {name!r}. Known candidates: {known}.")
    found: Candidate = import_module(MODULES[name]).CANDIDATES[name]
    return found
