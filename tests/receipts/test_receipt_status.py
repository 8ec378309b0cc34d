"""Current, stale and why, missing."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from evidence_world import SOURCE, World

from exactgraph.canonical import digest, read_json, short, write_json
from exactgraph.receipts.statement import write
from exactgraph.receipts.status import Row, status
from exactgraph.refusal import UserError
from exactgraph.sources.spec import slug

CODE = {"baseline": "a" * 16, "freeze": "b" * 16, "profile": "e" * 16, "rank": "c" * 16, "confirm": "d" * 16}
REHEARSED = {"prompts": 2, "new_tokens": 12, "repetitions": 2, "warmups": 0, "long_run": 48, "step_lengths": 64}


def code(stage: str, candidate: str | None) -> str:
    """The code that the world's evidence was made with."""
    if candidate is None:
        return CODE[stage]
    return digest(candidate if stage == "build" else [candidate])[:16]


def probe(world: World, slot: str = "local", **changes: Any) -> None:
    value = {
        "slot": slot,
        "host": "bench",
        "rehearsal": world.rehearsal,
        "gpu_uuid": None,
        "refusal": None,
        **world.environment,
        **changes,
    }
    write_json(world.root / "slots" / slot / "probe.json", value)


def config(*slots: str) -> dict[str, Any]:
    return {
        "models": [SOURCE],
        "devices": {slot: {} for slot in slots},
        "candidates": ["C022", "step"],
        "precision": "auto",
        "attention_preference": ["flash"],
        "protocol": {k: v for k, v in REHEARSED.items() if k != "prompts"} | {"timed": 1, "baselines": 3, "batches": [1]},
        "rehearsal": {"model": SOURCE, **REHEARSED},
    }


@pytest.fixture
def done(world: World) -> World:
    write(world.write())
    probe(world)
    return world


def only(world: World, *slots: str, stage_code: Any = code) -> Row:
    rows = status(world.root, config(*slots), stage_code)
    assert len(rows) == 1
    return rows[0]


def test_current(done: World) -> None:
    row = only(done)
    assert (row.state, row.why, row.status, row.confirmed) == ("current", [], "optimized", "step")
    assert (row.model, row.device) == (f"{slug(SOURCE)}@0123456789ab", "nvidia-test-sm90-132sm-141g")
    assert row.receipt is not None
    assert Path(row.receipt).is_file()
    assert row.to_json()["state"] == "current"


def test_an_upgraded_library(done: World) -> None:
    facts = {**done.facts, "torch": "2.13.0", "cudnn": "9.19"}
    probe(done, environment={"key": short(facts), "facts": facts})
    row = only(done)
    assert row.state == "stale"
    assert row.why == ["cudnn was absent, is 9.19", "torch was 2.11.0, is 2.13.0"]


def test_after_an_upgrade_the_old_receipt_is_stale_and_the_new_one_current(done: World) -> None:
    done.facts = {**done.facts, "torch": "2.13.0"}
    write(done.write())
    probe(done)
    old, new = sorted(status(done.root, config(), code), key=lambda row: row.libraries)
    assert (old.state, old.why) == ("stale", ["torch was 2.11.0, is 2.13.0"])
    assert (new.state, new.why) == ("current", [])
    assert old.environment != new.environment
    assert old.libraries.startswith("torch 2.11.0")


def test_an_edited_receipt_is_not_current(done: World) -> None:
    receipt = next(done.root.rglob("receipt.json"))
    value = read_json(receipt)
    value["predicate"]["sentence"] = "All is well."
    write_json(receipt, value)
    assert only(done).why == [
        "it is not what its evidence gives, altered or made by another exactgraph: exactgraph verify says where"
    ]


def test_a_receipt_without_its_evidence_is_not_current(done: World) -> None:
    next(done.root.rglob("frozen.json")).unlink()
    (why,) = only(done).why
    assert why.startswith("no receipt follows from its evidence: ")


def test_another_slot_still_has_it(done: World) -> None:
    probe(done, "new", environment={"key": short({}), "facts": {}})
    assert only(done).state == "current"


def test_a_swapped_device(done: World) -> None:
    probe(done, device={**done.device, "id": "nvidia-other"})
    row = only(done)
    assert (row.state, row.why) == ("stale", ["no slot has the device nvidia-test-sm90-132sm-141g now"])


def test_a_folder_of_imported_receipts_knows_no_machine(done: World) -> None:
    shutil.rmtree(done.root / "slots")
    assert only(done).state == "current"


def test_edited_code(done: World) -> None:
    def edited(stage: str, candidate: str | None) -> str:
        moved = {("validate", "step"), ("freeze", None), ("profile", None)}
        return "0" * 16 if (stage, candidate) in moved else code(stage, candidate)

    row = only(done, stage_code=edited)
    why = ["the code of freeze changed", "the code of profile changed", "the code of validate changed for step"]
    assert (row.state, row.why) == ("stale", why)


def test_a_candidate_that_is_gone(done: World) -> None:
    def gone(stage: str, candidate: str | None) -> str:
        if candidate == "C022":
            raise UserError("There is no candidate 'C022'.")
        return code(stage, candidate)

    row = only(done, stage_code=gone)
    assert (row.state, row.why) == ("stale", ["the package no longer has C022"])


def test_the_workflow_s_own_digests(done: World) -> None:
    """By default the package's present code counts, which is not what the invented evidence names."""
    rows = status(done.root, config())
    assert rows[0].state == "stale"
    assert "the code of baseline changed" in rows[0].why


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"predicateType": "other"}'])
def test_what_is_no_receipt(done: World, content: str) -> None:
    receipt = next(done.root.rglob("receipt.json"))
    receipt.write_text(content)
    row = only(done)
    assert row.state == "stale"
    assert row.why[0].startswith("not readable as a receipt")


def test_missing_before_the_probe(world: World) -> None:
    row = only(world, "local")
    assert (row.state, row.device, row.why) == ("missing", "?", ["slot local was not probed yet"])


def test_missing_before_the_source_is_resolved(world: World) -> None:
    probe(world)
    row = only(world, "local")
    assert (row.state, row.device) == ("missing", "nvidia-test-sm90-132sm-141g")
    assert row.why == ["the model's source was not resolved yet"]


def test_missing_because_refused(world: World) -> None:
    probe(world, refusal={"reason": "capability-too-low", "sentence": "This GPU is too old."})
    row = only(world, "local")
    assert (row.state, row.status, row.why) == ("missing", "capability-too-low", ["This GPU is too old"])


def test_missing_once_for_identical_gpus(world: World) -> None:
    probe(world, "one")
    probe(world, "two")
    resolve(world)
    row = only(world, "one", "two")
    assert (row.state, row.model, row.environment) == ("missing", f"{slug(SOURCE)}@0123456789ab", short(world.facts))
    assert len(row.protocol) == 16


def test_there_is_no_missing_row_for_a_receipt_that_is_there(world: World) -> None:
    probe(world)
    resolve(world)
    missing = only(world, "local")
    # The same place, now with a receipt in it (of another protocol, so it is not current).
    place = world.root / missing.model / missing.device / missing.environment / missing.protocol
    write_json(place / "receipt.json", write(world.write()))
    (next(path for path in world.root.rglob("receipt.json") if path.parent != place)).unlink()
    row = only(world, "local")
    assert (row.state, row.protocol) == ("stale", missing.protocol)


def resolve(world: World) -> None:
    source = {"source": SOURCE, "model": slug(SOURCE), "commit": "0123456789ab", "facts": {}}
    write_json(world.root / "sources" / f"{slug(SOURCE)}.json", source)


def test_nothing_at_all(tmp_path: Path) -> None:
    assert status(tmp_path, config()) == []


def test_a_configuration_that_an_older_exactgraph_left_is_a_sentence(done: World) -> None:
    source = {"commit": "0" * 12, "facts": {}, "source": SOURCE}
    write_json(done.root / "sources" / f"{slug(SOURCE)}.json", source)
    probe(done, environment={"key": "f" * 16, "facts": {}})
    older = config("local")
    lacking = ("rehearsal", "step_lengths") if done.rehearsal else ("protocol", "timed")
    del older[lacking[0]][lacking[1]]
    missing = [row for row in status(done.root, older, code) if row.state == "missing"]
    assert [row.protocol for row in missing] == ["?"]
    assert missing[0].why == [
        f"the configuration of the last run lacks {lacking[1]!r}, it is an older exactgraph's: a run writes it anew"
    ]
