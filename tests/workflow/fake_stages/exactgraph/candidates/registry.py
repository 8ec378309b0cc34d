"""Which module holds which candidate."""

from __future__ import annotations

CONTROLS = ("null", "wrong-ulp", "wrong-late")

MODULES: dict[str, str] = {
    "null": "exactgraph.candidates.controls",
    "wrong-ulp": "exactgraph.candidates.controls",
    "wrong-late": "exactgraph.candidates.controls",
    "C022": "exactgraph.candidates.module_graphs",
    "step": "exactgraph.candidates.step",
    "fused": "exactgraph.candidates.fused",
}
