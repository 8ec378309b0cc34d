"""Random sequences of (mutate, generate, restore) as plain JSON: what is done to a model, in an order that a seed fixes.

A sequence has one kind in focus, each kind in turn, and chance decides the rest: the model, the candidate, how much it may
capture, what else is done and with which arguments. Events carry seeds of their own, so that two processes do the same.
"""

from __future__ import annotations

import random
from typing import Any

Event = dict[str, Any]
Sequence = dict[str, Any]

FAMILIES = ("llama", "llama-mha", "mistral-window", "qwen3", "gemma2")
CANDIDATES = ("step", "step", "C022", "C025", "C026")

#: What is done to the model or around it, until it is restored.
MUTATIONS = (
    "write",
    "write-data",
    "replace",
    "move-data",
    "state-dict",
    "adapter",
    "dtype",
    "mode",
    "hook",
    "attention",
    "autocast",
    "flags",
    "configuration",
    "functions",
    "gradients",
    "torch-mode",
)
GPU_MUTATIONS = ("device", "stream")
#: How ``generate`` is called.
CALLS = (
    "greedy",
    "sampling",
    "penalties",
    "outputs",
    "several",
    "beams",
    "padding",
    "processor",
    "streamer",
    "criterion",
    "own-cache",
    "embeddings",
    "lengths",
    "end-tokens",
    "kept-logits",
    "nested",
    "threads",
    "errors",
    "changes-inside",
    "configuration-object",
    "direct",
    "assisted",
)


def kinds(device: str) -> tuple[str, ...]:
    """Every kind that a sequence can be about on ``device`` (``cpu`` or ``cuda``)."""
    return MUTATIONS + (GPU_MUTATIONS if device == "cuda" else ()) + CALLS


def sequence(seed: int, device: str) -> Sequence:
    """The sequence number ``seed``."""
    chance = random.Random(seed)
    every = kinds(device)
    kind = every[seed % len(every)]
    mutations = every[: -len(CALLS)]

    def ask(name: str | None = None) -> Event:
        return {"do": "generate", "kind": name or chance.choice(CALLS), "seed": chance.getrandbits(32)}

    def mutate(name: str | None = None) -> Event:
        return {"do": "mutate", "kind": name or chance.choice(mutations), "seed": chance.getrandbits(32)}

    def again() -> list[Event]:
        return [{"do": "reopen"}] if chance.random() < 0.25 else []

    if kind in CALLS:
        events = [ask(kind), mutate(), ask(kind), *again(), {"do": "restore"}, ask(kind)]
    else:
        usual = chance.choice(("greedy", "outputs", "sampling"))
        events = [ask(usual), mutate(kind), ask(usual), *again(), ask(), {"do": "restore"}, ask(usual)]
    if chance.random() < 0.4:
        events += [mutate(), ask(), mutate(), ask(), *again(), {"do": "restore"}, *again(), ask("outputs")]
    return {
        "seed": seed,
        "kind": kind,
        "family": chance.choice(FAMILIES),
        "candidate": chance.choice(CANDIDATES),
        "budget": chance.choice((3, 12, 64)),
        "capacity": chance.choice((24, 48)),
        "events": events,
    }
