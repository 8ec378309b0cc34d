"""The small files between stages.

``frozen.json`` and ``ranking.json`` also record the code that made them and what concerns other candidates. Stages that read
them whole would run again for edits that cannot change their result, so what a later stage depends on is written apart,
and Snakemake compares the bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from exactgraph.canonical import digest


def reference_of(frozen: Mapping[str, Any]) -> dict[str, Any]:
    """``reference.json``, written by freeze next to ``frozen.json``: which traces are the reference, under which attention."""
    return {name: frozen[name] for name in ("status", "attention", "weights_digest", "traces_digest")}


def skips_of(profile: Mapping[str, Any]) -> dict[str, Any]:
    """``skips.json``, written by profile next to ``profile.json``: the candidates not to be built, without the figures."""
    return {"skip": sorted(profile["skip"])}


def order_of(ranking: Mapping[str, Any], plans: Mapping[str, Any]) -> dict[str, Any]:
    """``order.json``, written by rank next to ``ranking.json``: what to confirm, in order, each with the digest of its plan.

    ``plans`` maps the ids in the order to their ``plan.json``; a plan names the code of its candidate.
    """
    order = [{"candidate": candidate, "plan": digest(plans[candidate])} for candidate in ranking["order"]]
    return {"status": ranking["status"], "order": order}
