"""The fuzz finds what it is for, finds nothing else, and says the same twice."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.fuzz.compare import by_kind, differences
from tests.fuzz.sequences import CALLS, Sequence, kinds, sequence
from tests.fuzz.worker import play

from exactgraph.canonical import read_json, write_json
from exactgraph.runtime.guard import Guard

ROOT = Path(__file__).parents[2]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def eagers(sequences: list[Sequence], folder: Path) -> Any:
    """What a fresh process that never imports a session makes of them."""
    write_json(folder / "asked.json", sequences)
    command = [sys.executable, "-m", "tests.fuzz.worker", "eager", str(folder / "asked.json"), str(folder / "eager.json")]
    subprocess.run(command, cwd=ROOT, check=True, timeout=280)
    return read_json(folder / "eager.json")


def run(tmp_path: Path, count: int) -> Any:
    command = [
        sys.executable,
        "-m",
        "tests.fuzz",
        "--sequences",
        str(count),
        "--seed",
        "1000",
        "--out",
        str(tmp_path / "fuzz.json"),
    ]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert ended.returncode == 0, ended.stderr
    return read_json(tmp_path / "fuzz.json")


def check(document: Any, count: int) -> None:
    assert (document["sequences"], document["silent_differences"], document["differences"]) == (count, 0, [])
    assert document["seeds"] == {"first": 1000, "count": count}
    rows = document["by_kind"]
    assert sum(row["sequences"] for row in rows.values()) == count
    # A fuzz in which nothing is captured, or nothing refused, proves nothing.
    assert sum(row["captured"] for row in rows.values()) > count
    assert sum(row["eager"] for row in rows.values()) > count / 2


def test_a_few_sequences_differ_in_nothing(tmp_path: Path) -> None:
    check(run(tmp_path, 38), 38)


@pytest.mark.gpu
def test_many_sequences_differ_in_nothing(tmp_path: Path) -> None:
    check(run(tmp_path, 120), 120)


def _planted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sequences: list[Sequence]) -> list[dict[str, Any]]:
    """What is found with a guard that never minds."""
    threads = torch.get_num_threads()
    if DEVICE == "cpu":
        torch.set_num_threads(1)  # as the other process has
    try:
        expected = eagers(sequences, tmp_path)
        with monkeypatch.context() as patched:
            patched.setattr(Guard, "refusal", lambda self: None)
            found = differences(sequences, play(sequences, optimised=True), expected)
        assert differences(sequences, play(sequences, optimised=True), expected) == []
    finally:
        torch.set_num_threads(threads)
    return found


def _about(kind: str, candidate: str) -> Sequence:
    every = kinds(DEVICE)
    found: Sequence = sequence(every.index(kind) + 20 * len(every), DEVICE)
    usual = [{"do": "generate", "kind": "kept-logits", "seed": 5}, {"do": "mutate", "kind": kind, "seed": 1}]
    return found | {"family": "llama", "candidate": candidate, "events": [*usual, usual[0]]}


@pytest.mark.parametrize("kind", ["replace", "move-data", "adapter", "attention", "mode"])
def test_a_guard_that_does_not_mind_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str) -> None:
    # Another attention has other bits only where it is part of the graph.
    candidate = "step" if kind in ("attention", "mode") else "C026"
    found = _planted(monkeypatch, tmp_path, [_about(kind, candidate)])
    assert [(entry["event"], entry["what"]["kind"]) for entry in found] == [(2, "kept-logits")]


def test_a_wrong_bit_is_found(tmp_path: Path) -> None:
    asked = [_about("write", "step"), _about("write", "wrong-ulp")]
    expected = eagers(asked, tmp_path)
    if DEVICE == "cpu":
        torch.set_num_threads(1)
    found = differences(asked, play(asked, optimised=True), expected)
    assert [entry["seed"] for entry in found] == [asked[1]["seed"]]


def test_sequences_are_what_their_seeds_say() -> None:
    for device in ("cpu", "cuda"):
        every = kinds(device)
        made = [sequence(number, device) for number in range(3 * len(every))]
        assert made == [sequence(number, device) for number in range(3 * len(every))]
        assert {entry["kind"] for entry in made} == {*every}
        assert {*CALLS} < {*every}
        assert len({str(entry["events"]) for entry in made}) == len(made)
        for entry in made:
            assert entry["kind"] in [event.get("kind") for event in entry["events"]]
            assert [event["do"] for event in entry["events"]].count("generate") >= 3


def test_calls_are_counted_by_how_they_ran() -> None:
    asked = [{"kind": "write"}, {"kind": "write"}, {"kind": "beams"}]
    done = [{"paths": ["captured", "eager"]}, {"paths": ["captured"]}, {"paths": ["refused"]}]
    assert by_kind(asked, done) == {
        "write": {"sequences": 2, "captured": 2, "eager": 1, "refused": 0},
        "beams": {"sequences": 1, "captured": 0, "eager": 0, "refused": 1},
    }
