"""What a receipt says of windows of a speech model follows from the digests and tokens that the evidence holds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from evidence_world import World
from window_records import ASKED, SECONDS, other_bits, record_of, with_windows

from exactgraph.canonical import digest, read_json, write_json
from exactgraph.receipts.alike import alike
from exactgraph.receipts.evidence import Inconsistent
from exactgraph.receipts.statement import derive, write
from exactgraph.receipts.verify import verify


def decision(world: World) -> dict[str, Any]:
    found: dict[str, Any] = derive(world.write())["predicate"]["confirmation"]["windows"]
    return found


def validated(world: World) -> dict[str, Any]:
    found: dict[str, Any] = world.validations["step"]["windows"]
    return found


def attempted(world: World) -> dict[str, Any]:
    found: dict[str, Any] = world.confirmations[1]["windows"]
    return found


def test_a_receipt_tells_of_each_way_and_decides(world: World) -> None:
    key_dir = with_windows(world).write()
    predicate = write(key_dir)["predicate"]
    assert predicate["confirmation"]["windows"] == {"encoder": "batched", "grade": "bit-identical", "mode": "parallel"}
    told = predicate["candidates"]["step"]["windows"]
    assert told["of"] == 4
    assert told["encoder"]["batched"] == {
        "grade": "bit-identical",
        "states_equal": 4,
        "tokens_equal": {"sequential": 4, "parallel": 4},
        "seconds": SECONDS["batched"],
        "why": None,
    }
    assert told["modes"]["parallel"]["why"].startswith("Steps are captured for batches of 1")
    caught, matched = predicate["confirmation"]["attempts"]
    assert "windows" not in caught
    assert matched["windows"]["of"] == 8
    assert matched["windows"]["encoder"]["captured"]["seconds"] is None
    assert "windows" not in predicate["candidates"]["null"]
    assert verify(key_dir / "receipt.json").ok


def test_a_receipt_of_no_speech_model_says_nothing_of_windows(world: World) -> None:
    predicate = derive(world.write())["predicate"]
    assert "windows" not in predicate["confirmation"]
    assert not any("windows" in found for found in predicate["candidates"].values())


def test_a_rehearsal_ranks_nothing_by_speed(rehearsal: World) -> None:
    assert decision(with_windows(rehearsal)) == {"encoder": "batched", "grade": "bit-identical", "mode": "parallel"}
    other_bits(attempted(rehearsal), "confirm", token=True)
    assert decision(rehearsal)["encoder"] == "captured"


def test_what_is_fastest_and_exact_in_both_is_used(world: World) -> None:
    with_windows(world)
    validated(world)["seconds"] |= {"captured": [0.5], "parallel": [9.0]}
    assert decision(world) == {"encoder": "captured", "grade": "bit-identical", "mode": "sequential"}
    validated(world)["seconds"] |= {"eager": [0.25]}
    assert decision(world)["encoder"] == "eager"


def test_the_grade_is_the_lower_one_of_validation_and_confirmation(world: World) -> None:
    other_bits(attempted(with_windows(world)), "long")
    assert decision(world) == {"encoder": "batched", "grade": "token-identical", "mode": "parallel"}


def test_a_token_at_confirmation_keeps_a_way_from_use(world: World) -> None:
    other_bits(attempted(with_windows(world)), "long", token=True)
    assert decision(world)["encoder"] == "captured"


def test_capturing_that_does_not_keep_the_bits_is_not_used(world: World) -> None:
    with_windows(world)
    validated(world)["seconds"] |= {"captured": [0.5]}
    other_bits(validated(world), "heldout", way="captured")
    predicate = derive(world.write())["predicate"]
    assert predicate["candidates"]["step"]["windows"]["encoder"]["captured"]["grade"] == "token-identical"
    assert predicate["confirmation"]["windows"]["encoder"] == "batched"


def test_several_in_one_call_need_all_tokens_of_the_encoder_that_is_used(world: World) -> None:
    with_windows(world)
    other_bits(attempted(world), "confirm")
    attempted(world)["sets"]["confirm"]["tokens"]["batched"]["parallel"][2][0] = 5
    assert decision(world) == {"encoder": "batched", "grade": "token-identical", "mode": "sequential"}


def test_what_was_refused_is_told(world: World) -> None:
    with_windows(world)
    for record in (validated(world), attempted(world)):
        record["refused"] = {"captured": "It waits for the host.", "parallel": "CUDA out of memory."}
        del record["not_captured"]["parallel"]
        for found in record["sets"].values():
            del found["states"]["captured"], found["tokens"]["eager"]["parallel"]
        for run in ("captured", "parallel"):
            (record["seconds"] or {}).pop(run, None)
    predicate = derive(world.write())["predicate"]
    told = predicate["candidates"]["step"]["windows"]
    assert (told["encoder"]["captured"]["grade"], told["encoder"]["captured"]["why"]) == (None, "It waits for the host.")
    assert told["modes"]["parallel"] == {"seconds": None, "why": "CUDA out of memory."}
    assert predicate["confirmation"]["windows"] == {"encoder": "batched", "grade": "bit-identical", "mode": "sequential"}


def test_an_edited_grade_is_noticed(world: World) -> None:
    other_bits(attempted(with_windows(world)), "long")
    key_dir = world.write()
    write(key_dir)
    receipt = read_json(key_dir / "receipt.json")
    receipt["predicate"]["confirmation"]["windows"]["grade"] = "bit-identical"
    write_json(key_dir / "receipt.json", receipt)
    found = verify(key_dir / "receipt.json")
    assert not found.ok
    assert any("confirmation" in line for line in found.lines if line.startswith("no: ")), found.lines


Bend = Callable[[dict[str, Any]], Any]


def _first(bend: Bend) -> Bend:
    """``bend`` the record of step's validation."""
    return lambda files: bend(files["candidates/step/validation.json"]["windows"])


def _heldout(bend: Bend) -> Bend:
    return _first(lambda record: bend(record["sets"]["heldout"]))


FORGED: dict[str, tuple[Bend, str]] = {
    "no windows": (
        lambda files: files["confirmation.json"]["attempts"][1].pop("windows"),
        "confirmation of step lacks windows, which it must have",
    ),
    "windows of a control": (
        lambda files: files["candidates/null/validation.json"].update(windows=record_of("heldout")),
        "validation of null has windows, which it must not have",
    ),
    "a set less": (
        lambda files: files["confirmation.json"]["attempts"][1]["windows"]["sets"].pop("long"),
        r"confirmation of step asks windows of \['confirm'\], not of \['confirm', 'long'\]",
    ),
    "a window less": (_heldout(lambda found: found["windows"].pop()), "they are not the 4 that must be asked"),
    "one window twice": (
        _heldout(lambda found: found["windows"][3].update(digest=found["windows"][0]["digest"])),
        "two of them are the same",
    ),
    "another window than the frozen one": (
        _heldout(lambda found: found["windows"][0].update(digest=digest("other"))),
        "heldout/0 is not the frozen window with eager's frozen answer",
    ),
    "other tokens of eager's than the frozen ones": (
        _heldout(lambda found: found["expected"][1].__setitem__(0, 5)),
        "heldout/1 is not the frozen window with eager's frozen answer",
    ),
    "a shorter answer": (_heldout(lambda found: found["expected"][3].pop()), "do not have the length that was asked for"),
    "a way less": (_heldout(lambda found: found["states"].pop("captured")), "there is not one digest of hidden states"),
    "a grade in place of a digest": (
        _heldout(lambda found: found["states"]["batched"].__setitem__(0, "bit-identical")),
        "there is not one digest of hidden states",
    ),
    "other bits without tokens": (
        _heldout(lambda found: found["states"]["batched"].__setitem__(0, digest("other"))),
        "there are tokens by eager, not by eager, batched",
    ),
    "a mode less": (_heldout(lambda found: found["tokens"]["eager"].pop("parallel")), "not tokens of each of them by eager"),
    "tokens of fewer windows": (
        _heldout(lambda found: found["tokens"]["eager"]["parallel"].pop()),
        "not tokens of each of them by eager",
    ),
    "eager refused": (_first(lambda record: record["refused"].update(eager="It fails.")), "refuses a way or a mode"),
    "refused without a reason": (_first(lambda record: record["refused"].update(batched="")), "does not say why"),
    "no seconds": (_first(lambda record: record.update(seconds=None)), "does not have seconds of windows"),
    "seconds of no way": (_first(lambda record: record["seconds"].update(other=[1.0])), "does not have seconds of windows"),
    "a repetition more": (
        _first(lambda record: record["seconds"]["eager"].append(1.0)),
        "does not have 1 repetitions of windows",
    ),
    "no time at all": (_first(lambda record: record["seconds"].update(batched=[0.0])), "does not have 1 repetitions"),
    "seconds at confirmation": (
        lambda files: files["confirmation.json"]["attempts"][1]["windows"].update(seconds={}),
        "has seconds of windows, where nothing is timed",
    ),
}


@pytest.mark.parametrize(("bend", "words"), FORGED.values(), ids=FORGED)
def test_what_no_honest_run_would_have_written(world: World, bend: Bend, words: str) -> None:
    key_dir = with_windows(world).write(bend)
    with pytest.raises(Inconsistent, match=words):
        derive(key_dir)


def test_windows_that_no_protocol_asked_for(world: World) -> None:
    del with_windows(world).protocol["windows"]
    with pytest.raises(Inconsistent, match="has windows, which it must not have"):
        derive(world.write())


def test_a_rehearsal_has_no_seconds(rehearsal: World) -> None:
    with_windows(rehearsal)
    validated(rehearsal)["seconds"] = {run: [1.0] for run in SECONDS}
    with pytest.raises(Inconsistent, match="has seconds of windows, where nothing is timed"):
        derive(rehearsal.write())


def test_batches_of_one_are_no_way_of_their_own(world: World) -> None:
    with_windows(world).protocol["windows"] = ASKED | {"encoder_batch": 1, "parallel": 4}
    with pytest.raises(Inconsistent, match="there is not one digest of hidden states for each of them, by eager, captured"):
        derive(world.write())


def test_two_gpus_give_windows_the_same_bits(tmp_path: Path) -> None:
    def receipt(name: str, bend: Bend = lambda record: None) -> Path:
        world = with_windows(World(tmp_path / name))
        bend(validated(world))
        key_dir = world.write()
        write(key_dir)
        return key_dir / "receipt.json"

    same = alike(receipt("one"), receipt("two", lambda record: record["seconds"].update(eager=[9.0])))
    assert same.ok, same.lines
    assert "yes: step at validation, windows ahead of decoding: equal hidden states and tokens by every way" in same.lines
    other = alike(receipt("one"), receipt("three", lambda record: other_bits(record, "heldout")))
    assert [line for line in other.lines if line.startswith("no: ")] == [
        "no: step at validation, windows ahead of decoding: other states of heldout, tokens of heldout"
    ]
