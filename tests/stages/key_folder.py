"""A key's folder with hand-made files, without a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from exactgraph.canonical import digest, write_json
from exactgraph.stages.place import Place

PROTOCOL = {"baselines": 3, "attention_preference": ["flash", "efficient", "math"], "rehearsal": False}
Sets = dict[str, list[dict[str, Any]]]


def make(root: Path) -> Place:
    folder = root / "model@0123456789ab" / "device" / "environment" / "protocol"
    write_json(folder / "protocol.json", PROTOCOL)
    return Place(folder)


def sets(token: int = 12, bits: str = "") -> Sets:
    """Two answers; ``token`` is one token of the second, ``bits`` changes one of its logits."""

    def trace(index: int, tokens: list[int]) -> dict[str, Any]:
        return {
            "prompt": f"heldout/{index}",
            "prompt_digest": digest(index),
            "tokens": tokens,
            "logits": [digest([index, step, bits if (index, step) == (1, 1) else ""]) for step in range(3)],
            "margins": [1.5, 0.25, 3.0],
        }

    return {"heldout": [trace(0, [1, 2, 3]), trace(1, [11, token, 13])]}


def run(attention: str, number: int, answers: Sets | None) -> dict[str, Any]:
    """One baseline run; without answers the backend could not run the model."""
    record: dict[str, Any] = {
        "stage": "baseline",
        "code": "a" * 16,
        "run": number,
        "attention": attention,
        "weights_digest": digest("weights"),
        "process": {"pid": number, "seconds": 0.1 * number},
    }
    if answers is None:
        return {**record, "failed": {"reason": "generate-failed", "sentence": f"{attention} cannot run the model."}}
    return {**record, "sets": answers, "traces_digest": digest(answers), "texts": {"heldout/0": "text"}}


def write_runs(place: Place, attention: str, answers: list[Sets | None]) -> None:
    for number, answer in enumerate(answers, 1):
        write_json(place.baseline_path(attention, number), run(attention, number, answer))
