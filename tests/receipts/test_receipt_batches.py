"""What a receipt says of batches follows from the traces of eager and of the candidate that the evidence holds."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from evidence_world import PROMPTS, World, trace

from exactgraph.canonical import digest
from exactgraph.protocol.batches import sequence_name
from exactgraph.receipts.alike import alike
from exactgraph.receipts.evidence import Inconsistent
from exactgraph.receipts.statement import derive, write
from exactgraph.receipts.verify import verify

BATCHES = [2, 4]


def batch_of(name: str, batch: int) -> list[dict[str, Any]]:
    """Eager's traces of one batch of a set; only its first prompt, the shortest, is uncut."""
    frozen = [trace(name, index) for index in range(PROMPTS[name])]
    rows = []
    for index, whole in zip(range(batch), cycle(frozen), strict=False):
        row = {**whole, "prompt": sequence_name(whole["prompt"], index, batch), "prompt_tokens": 9}
        row["logits"] = [digest([batch, index, step]) for step in range(len(whole["tokens"]))]
        if index:
            row["prompt_digest"] = digest([name, index, batch])
        rows.append(row)
    return rows


def records(*names: str) -> list[dict[str, Any]]:
    eager = {batch: {name: batch_of(name, batch) for name in names} for batch in BATCHES}
    return [
        {"batch": batch, "served": True, "why": None, "eager": sets, "candidate": copy.deepcopy(sets)}
        for batch, sets in eager.items()
    ]


def in_batches(world: World) -> World:
    """The run of a protocol that names batches: what was exact on single prompts was asked in them."""
    world.protocol["batches"] = [1, *BATCHES]
    for validation in world.validations.values():
        if validation["status"] == "exact":
            validation["batches"] = records("heldout")
    for attempt in world.confirmations:
        if attempt["status"] == "matched":
            attempt["batches"] = records(*PROMPTS)
    return world


def differ(record: dict[str, Any], name: str, token: bool = True) -> str:
    """The second sequence of a batch differs at its fourth step; returns the sequence's name."""
    found = record["candidate"][name][1]
    found["logits"][3] = digest("other")
    if token:
        found["tokens"][3] = 7
    return str(found["prompt"])


def test_a_receipt_tells_of_each_batch(world: World) -> None:
    in_batches(world)
    served = world.validations["C022"]["batches"][0]
    served |= {"served": False, "why": "It captures no whole steps."}
    key_dir = world.write()
    predicate = write(key_dir)["predicate"]
    assert predicate["status"] == "optimized"
    told = predicate["candidates"]["step"]["batches"]
    assert [(found["batch"], found["served"], found["comparison"]["matches"]) for found in told] == [
        (2, True, 2),
        (4, True, 4),
    ]
    assert told[1]["comparison"]["logits_equal"] == told[1]["comparison"]["logits_of"] == 4 * 6
    first = predicate["candidates"]["C022"]["batches"][0]
    assert (first["served"], first["why"]) == (False, "It captures no whole steps.")
    assert "batches" not in predicate["candidates"]["wrong-ulp"]
    caught, matched = predicate["confirmation"]["attempts"]
    assert "batches" not in caught
    assert [found["comparison"]["of"] for found in matched["batches"]] == [2 * len(PROMPTS), 4 * len(PROMPTS)]
    assert verify(key_dir / "receipt.json").ok


def test_a_receipt_without_batches_says_nothing_of_them(world: World) -> None:
    predicate = derive(world.write())["predicate"]
    assert not any("batches" in found for found in predicate["candidates"].values())
    assert not any("batches" in attempt for attempt in predicate["confirmation"]["attempts"])


def test_a_difference_in_a_batch_rejects_at_validation(world: World) -> None:
    in_batches(world)
    name = differ(world.validations["C022"]["batches"][1], "heldout")
    why = f"First other token at prompt {name}, step 3: 7 instead of 1003 (the baseline's margin there: 0.625)."
    world.validations["C022"] |= {"status": "rejected", "grade": None, "why": why, "timing": None}
    world.order.remove("C022")
    key_dir = world.write()
    predicate = write(key_dir)["predicate"]
    told = predicate["candidates"]["C022"]
    assert (told["verdict"], told["why"], told["comparison"]["first_token_difference"]) == ("rejected", why, None)
    assert told["batches"][1]["comparison"]["first_token_difference"]["prompt"] == name
    assert verify(key_dir / "receipt.json").ok


def test_a_difference_in_a_batch_is_a_mismatch_at_confirmation(world: World) -> None:
    in_batches(world)
    attempt = world.confirmations[1]
    name = differ(attempt["batches"][0], "long", token=False)
    attempt |= {"status": "mismatch", "grade": "token-identical"}
    world.confirm("C022")
    world.confirmations[2]["batches"] = records(*PROMPTS)
    world.confirmed = "C022"
    predicate = derive(world.write())["predicate"]
    assert predicate["candidates"]["step"]["verdict"] == "mismatch"
    assert predicate["confirmation"]["confirmed"] == "C022"
    told = predicate["confirmation"]["attempts"][1]["difference"]
    assert (told["prompt"], told["step"], told["kind"]) == (name, 3, "logits")


def test_the_grade_is_the_lowest_of_all_batches(world: World) -> None:
    world.validate("step", ratio=5.9, claims="token-identical")
    in_batches(world)
    differ(world.validations["step"]["batches"][0], "heldout", token=False)
    world.validations["step"]["grade"] = "token-identical"
    assert derive(world.write())["predicate"]["candidates"]["step"]["grade"] == "token-identical"


Bend = Callable[[dict[str, Any]], Any]


def _validation(bend: Bend) -> Bend:
    return lambda files: bend(files["candidates/step/validation.json"])


def _first(bend: Bend) -> Bend:
    """``bend`` the first batch of step's validation."""
    return _validation(lambda validation: bend(validation["batches"][0]))


def _both(bend: Callable[[dict[str, Any]], Any]) -> Bend:
    """``bend`` the second sequence of a batch, in eager's traces and in the candidate's."""
    return _first(lambda record: [bend(record[who]["heldout"][1]) for who in ("eager", "candidate")])


FORGED: dict[str, tuple[Bend, str]] = {
    "a difference under an exact verdict": (
        _first(lambda record: differ(record, "heldout")),
        r"validation of step says exact \(bit-identical\); its comparison gives rejected \(None\)",
    ),
    "a difference under a match": (
        lambda files: differ(files["confirmation.json"]["attempts"][1]["batches"][1], "long"),
        r"confirmation of step says matched \(bit-identical\); its traces give mismatch \(None\)",
    ),
    "no batches": (
        _validation(lambda validation: validation.pop("batches")),
        r"validation of step does not have the batches that it must \(2, 4\)",
    ),
    "a batch less at confirmation": (
        lambda files: files["confirmation.json"]["attempts"][1]["batches"].pop(),
        r"confirmation of step does not have the batches that it must \(2, 4\)",
    ),
    "batches of what was rejected": (
        lambda files: files["candidates/wrong-ulp/validation.json"].update(batches=records("heldout")),
        r"validation of wrong-ulp does not have the batches that it must \(none\)",
    ),
    "a set less": (
        lambda files: [
            files["confirmation.json"]["attempts"][1]["batches"][0][who].pop("long") for who in ("eager", "candidate")
        ],
        r"confirmation of step does not ask all its prompt sets in batches of 2",
    ),
    "a sequence less": (
        _first(lambda record: [record[who]["heldout"].pop() for who in ("eager", "candidate")]),
        r"set heldout, batch of 2: the sequences are not the prompts of the set in their order",
    ),
    "other prompts than eager's": (
        _first(lambda record: record["candidate"]["heldout"][1].update(prompt_digest=digest("other"))),
        r"cannot be compared with eager in batches of 2: the traces of set 'heldout' answer other prompts",
    ),
    "another shortest prompt than the frozen one": (
        _first(lambda record: [record[who]["heldout"][0].update(prompt_digest="f" * 64) for who in ("eager", "candidate")]),
        r"heldout/0 \(sequence 0 of a batch of 2\) is not the frozen prompt, cut to 9 tokens",
    ),
    "a longer prompt": (_both(lambda row: row.update(prompt_tokens=10)), r"is not the frozen prompt, cut to 9 tokens"),
    "a shorter answer": (
        _both(lambda row: [row[field].pop() for field in ("tokens", "logits", "margins")]),
        r"eager's answer to heldout/1 \(sequence 1 of a batch of 2\) does not have the length that was asked for",
    ),
    "eager without a reason": (
        _first(lambda record: record.update(served=False)),
        r"validation of step does not say why batches of 2 ran eager",
    ),
}


@pytest.mark.parametrize(("bend", "words"), FORGED.values(), ids=FORGED)
def test_what_no_honest_run_would_have_written(world: World, bend: Bend, words: str) -> None:
    key_dir = in_batches(world).write(bend)
    with pytest.raises(Inconsistent, match=words):
        derive(key_dir)


def test_batches_that_no_protocol_asked_for(world: World) -> None:
    in_batches(world)
    del world.protocol["batches"]
    with pytest.raises(Inconsistent, match=r"does not have the batches that it must \(none\)"):
        derive(world.write())


def test_two_gpus_answer_alike_in_batches_too(tmp_path: Path) -> None:
    def receipt(name: str, bend: Bend = lambda record: None) -> Path:
        world = in_batches(World(tmp_path / name))
        record = world.validations["step"]["batches"][1]
        for who in ("eager", "candidate"):
            bend(record[who]["heldout"][1])
        key_dir = world.write()
        write(key_dir)
        return key_dir / "receipt.json"

    same = alike(receipt("one"), receipt("two"))
    assert same.ok, same.lines
    assert "yes: step at validation in batches of 4: 4 answers, 24 logits, equal bits" in same.lines
    other = alike(receipt("one"), receipt("three", lambda row: row["logits"].__setitem__(2, digest("other"))))
    assert [line for line in other.lines if line.startswith("no: ")] == [
        "no: step at validation in batches of 4: first logits with other bits at "
        "prompt heldout/1 (sequence 1 of a batch of 4), step 2 (the baseline's margin there: 0.5)"
    ]
