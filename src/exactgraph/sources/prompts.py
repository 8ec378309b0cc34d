"""Seeded token-ID prompts for models without a tokenizer."""

from __future__ import annotations

from typing import Any

from exactgraph.sources.random_bits import stream

# Tokens per prompt. The sets share no length, and both sides of 128 and 256 are there because attention kernels change at
# multiples of 128 tokens. The shortest context is 200 + 64 new tokens, the longest 24 + 512.
_LENGTHS = {
    "heldout": (9, 33, 64, 100, 127, 200),
    "confirm": (5, 48, 96, 128, 129, 257),
    "long": (24,),
}


def seeded_prompts(vocab: int, special: set[int], first: int | None, seed: int) -> dict[str, list[list[int]]]:
    """``{"heldout": 6 lists of ids, "confirm": 6 others, "long": 1 list}``.

    Ids are drawn from ``range(vocab)`` without the ``special`` ones; ``first`` (the beginning-of-text id), where there is
    one, opens every prompt.
    """
    ordinary = [token for token in range(vocab) if token not in special]
    sets: dict[str, list[list[int]]] = {}
    for name, lengths in _LENGTHS.items():
        sets[name] = []
        for index, length in enumerate(lengths):
            drawn = stream(seed, f"prompt/{name}/{index}").random_raw(length)
            ids = [ordinary[int(bits) % len(ordinary)] for bits in drawn]
            sets[name].append(ids if first is None else [first, *ids[1:]])
    return sets


def special_ids(config: dict[str, Any]) -> tuple[set[int], int | None]:
    """The special token ids that a ``config.json`` names, and the one that begins a text."""
    special: set[int] = set()
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        value = config.get(key)
        special |= set(value) if isinstance(value, list) else set() if value is None else {value}
    return special, config.get("bos_token_id")
