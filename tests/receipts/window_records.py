"""Records of windows of a speech model, for evidence to bend."""

from __future__ import annotations

import copy
from typing import Any

from evidence_world import NEW_TOKENS, PROMPTS, World, trace

from exactgraph.canonical import digest
from exactgraph.protocol.window_ways import turned_name

ASKED = {"encoder_batch": 4, "device_mib": 64, "parallel": 2}
COUNT = 4
SECONDS = {"eager": 4.0, "captured": 2.0, "batched": 1.0, "sequential": 3.0, "parallel": 2.5}


def windows_of(name: str) -> dict[str, Any]:
    """What was asked of one set: all ways give eager's bits, all modes its tokens."""
    windows, expected = [], []
    turns = -(-COUNT // PROMPTS[name])
    for index in range(COUNT):
        turn, place = divmod(index, PROMPTS[name])
        whole = trace(name, place)
        told = digest([name, place, turn]) if turn else whole["prompt_digest"]
        windows.append({"id": turned_name(whole["prompt"], turn, turns), "digest": told})
        expected.append([token + 7 * turn for token in whole["tokens"]])
    states = [digest(["states", name, index]) for index in range(COUNT)]
    return {
        "windows": windows,
        "expected": expected,
        "states": {way: list(states) for way in ("eager", "captured", "batched")},
        "tokens": {"eager": {mode: copy.deepcopy(expected) for mode in ("sequential", "parallel")}},
    }


def record_of(*names: str, timed: bool = False) -> dict[str, Any]:
    return {
        "sets": {name: windows_of(name) for name in names},
        "refused": {},
        "not_captured": {"parallel": "Steps are captured for batches of 1; this call has 2 sequences."},
        "seconds": {run: [second] for run, second in SECONDS.items()} if timed else None,
    }


def other_bits(record: dict[str, Any], name: str, way: str = "batched", token: bool = False) -> None:
    """``way`` gives the second window of a set other hidden states, and where ``token`` another token in its last step."""
    found = record["sets"][name]
    found["states"][way][1] = digest("other")
    for told in record["sets"].values():
        told["tokens"].setdefault(way, copy.deepcopy(told["tokens"]["eager"]))
    if token:
        found["tokens"][way]["sequential"][1][-1] = 5


def with_windows(world: World) -> World:
    """The run of a protocol that asks about windows: what was exact was asked about them."""
    world.protocol |= {"task": "transcribe", "windows": ASKED}
    for name, validation in world.validations.items():
        if validation["status"] == "exact" and not validation["control"]:
            timed = not world.rehearsal and world.plans[name]["timed"]
            validation["windows"] = record_of("heldout", timed=timed)
    for attempt in world.confirmations:
        if attempt["status"] == "matched":
            attempt["windows"] = record_of(*(name for name in NEW_TOKENS if name != "heldout"))
    return world
