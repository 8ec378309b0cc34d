"""Describes the pretended machine."""

from __future__ import annotations

from argparse import Namespace

from exactgraph.machine import machine, note

from exactgraph.canonical import short, write_json


def run(arguments: Namespace) -> None:
    note("probe", arguments.slot)
    gpu = machine()["gpu"]
    facts = {"torch": machine()["torch"]}
    refusal = machine().get("refusals", {}).get(arguments.slot)
    rest = {"name": gpu or "a CPU", "capability": machine().get("capability", "9.0") if gpu else None}
    rest |= {"sm_count": None, "memory_gb": 1, "mig": None}
    device = {"id": gpu or "cpu-fake", "kind": "cuda" if gpu else "cpu", **rest}
    environment = {"key": short(facts), "facts": facts}
    probe = {"slot": arguments.slot, "rehearsal": not gpu, "device": device, "environment": environment}
    write_json(arguments.out, {**probe, "precision": "bf16" if gpu else "fp32", "refusal": refusal})
