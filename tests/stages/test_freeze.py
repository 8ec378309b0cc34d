"""The baseline is frozen where independent runs agree, pinned where only another backend does, and unstable otherwise."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import key_folder
import pytest
from key_folder import Sets, sets, write_runs

from exactgraph.canonical import digest, read_json, write_json
from exactgraph.refusal import UserError
from exactgraph.stages import freeze
from exactgraph.stages.place import Place

CODE = "c" * 16
SAME: list[Sets | None] = [sets()] * 3
OTHER_TOKEN: list[Sets | None] = [sets(), sets(), sets(token=99)]
OTHER_BITS: list[Sets | None] = [sets(), sets(bits="other"), sets()]
FAILED: list[Sets | None] = [None] * 3


class Spawned:
    """Stands in for fresh processes: writes the runs that ``backends`` give, and keeps what was asked."""

    def __init__(self, place: Place, backends: dict[str, list[Sets | None]]) -> None:
        self.place, self.backends = place, backends
        self.asked: list[tuple[str, int]] = []

    def __call__(self, *arguments: str) -> None:
        command, folder, *options = arguments
        named = dict(zip(options[::2], options[1::2], strict=True))
        attention, number = named["--attention"], int(named["--run"])
        assert (command, folder) == ("baseline", str(self.place.folder))
        assert Path(named["--out"]) == self.place.baseline_path(attention, number)
        self.asked.append((attention, number))
        write_runs(self.place, attention, self.backends[attention][:number])


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return key_folder.make(tmp_path)


def frozen(
    place: Place, monkeypatch: pytest.MonkeyPatch, default: list[Sets | None], **backends: list[Sets | None]
) -> tuple[dict[str, Any], list[tuple[str, int]]]:
    write_runs(place, "default", default)
    spawned = Spawned(place, backends)
    monkeypatch.setattr(freeze, "run_fresh", spawned)
    freeze.run(place.folder, CODE, 1)
    return read_json(place.folder / "frozen.json"), spawned.asked


def test_runs_that_agree_are_frozen_without_further_processes(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    result, asked = frozen(place, monkeypatch, SAME)
    assert asked == []
    assert (result["status"], result["attention"], result["pin"]) == ("frozen", "default", None)
    assert result["sets"] == sets()
    assert result["traces_digest"] == digest(sets())
    assert result["weights_digest"] == digest("weights")
    assert result["texts"] == {"heldout/0": "text"}
    assert (result["stage"], result["code"]) == ("freeze", CODE)
    assert result["attempts"] == [{"attention": "default", "agree": True, "difference": None, "failed": None}]


def test_when_and_how_fast_the_runs_were_is_not_in_the_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contents = []
    for name, order in (("one", (1, 2, 3)), ("two", (7, 8, 9))):
        place = key_folder.make(tmp_path / name)
        for number, pid in zip((1, 2, 3), order, strict=True):
            record = {**key_folder.run("default", number, sets()), "process": {"pid": pid, "seconds": pid * 1.5}}
            write_json(place.baseline_path("default", number), record)
        freeze.run(place.folder, CODE, 1)
        contents.append([(place.folder / file).read_bytes() for file in ("frozen.json", "reference.json")])
    assert contents[0] == contents[1]


def test_a_default_that_differs_is_pinned_to_the_first_backend_that_does_not(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, asked = frozen(place, monkeypatch, OTHER_TOKEN, flash=[sets(token=5)] * 3)
    assert asked == [("flash", 1), ("flash", 2), ("flash", 3)]
    assert (result["status"], result["attention"]) == ("frozen", "flash")
    # The reference is what the pinned runs say, not what the default's did.
    assert result["sets"] == sets(token=5)
    first, second = result["attempts"]
    assert first["difference"] == {
        "prompt": "heldout/1",
        "step": 1,
        "expected": 12,
        "got": 99,
        "margin": 0.25,
        "kind": "token",
    }
    assert (first["agree"], second["agree"]) == (False, True)
    assert result["pin"] == {
        "backend": "flash",
        "sentence": "Attention is pinned to flash, the first backend that reproduces itself in fresh processes "
        "(default: first other token at prompt heldout/1, step 1: 99 instead of 12 (the baseline's margin there: 0.25)).",
    }


def test_other_bits_are_no_agreement_though_all_tokens_are_equal(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    result, asked = frozen(place, monkeypatch, OTHER_BITS, flash=SAME)
    assert len(asked) == 3
    assert result["attention"] == "flash"
    assert result["attempts"][0]["difference"]["kind"] == "logits"


def test_a_backend_that_fails_or_differs_is_passed_over(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    result, asked = frozen(place, monkeypatch, OTHER_TOKEN, flash=FAILED, efficient=OTHER_BITS, math=SAME)
    assert [attention for attention, number in asked if number == 1] == ["flash", "efficient", "math"]
    assert result["attention"] == "math"
    assert [attempt["failed"] is not None for attempt in result["attempts"]] == [False, True, False, False]
    assert "flash: flash cannot run the model." in result["pin"]["sentence"]
    assert "efficient: first logits with other bits" in result["pin"]["sentence"]


def test_one_failed_run_of_three_is_no_agreement(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    result, _ = frozen(place, monkeypatch, [sets(), sets(), None], flash=SAME)
    assert result["attention"] == "flash"
    assert result["attempts"][0]["failed"]["reason"] == "generate-failed"


def test_no_backend_that_agrees_is_an_unstable_baseline(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    result, asked = frozen(place, monkeypatch, OTHER_TOKEN, flash=OTHER_BITS, efficient=FAILED, math=OTHER_TOKEN)
    assert len(asked) == 9
    assert result["status"] == "baseline-unstable"
    assert (result["pin"], result["sets"], result["traces_digest"], result["weights_digest"]) == (None,) * 4
    kinds = [attempt["difference"] and attempt["difference"]["kind"] for attempt in result["attempts"]]
    assert kinds == ["token", "logits", None, "token"]


@pytest.mark.parametrize("default", [SAME, OTHER_TOKEN])
def test_the_reference_says_what_is_frozen(place: Place, monkeypatch: pytest.MonkeyPatch, default: list[Sets | None]) -> None:
    result, _ = frozen(place, monkeypatch, default, flash=FAILED, efficient=FAILED, math=FAILED)
    reference = read_json(place.folder / "reference.json")
    assert reference == {name: result[name] for name in ("status", "attention", "weights_digest", "traces_digest")}


def test_a_process_that_ends_in_an_error_ends_the_stage(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: str) -> None:
        raise UserError("exactgraph baseline ended with exit code 2; see its message above.")

    write_runs(place, "default", OTHER_TOKEN)
    monkeypatch.setattr(freeze, "run_fresh", fails)
    with pytest.raises(UserError):
        freeze.run(place.folder, CODE, 1)
    assert not (place.folder / "frozen.json").exists()


def test_the_processes_of_one_backend_run_at_the_same_time(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    together = threading.Barrier(3)

    def meets(*arguments: str) -> None:
        together.wait(timeout=20)
        number = int(arguments[arguments.index("--run") + 1])
        write_json(place.baseline_path("flash", number), key_folder.run("flash", number, sets()))

    write_runs(place, "default", OTHER_TOKEN)
    monkeypatch.setattr(freeze, "run_fresh", meets)
    freeze.run(place.folder, CODE, 3)
    assert read_json(place.folder / "frozen.json")["attention"] == "flash"


def test_no_more_processes_run_than_there_are_jobs(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    running: list[int] = []
    most = []

    def counts(*arguments: str) -> None:
        running.append(1)
        most.append(len(running))
        time.sleep(0.05)
        running.pop()
        number = int(arguments[arguments.index("--run") + 1])
        write_json(place.baseline_path("flash", number), key_folder.run("flash", number, sets()))

    write_runs(place, "default", OTHER_TOKEN)
    monkeypatch.setattr(freeze, "run_fresh", counts)
    freeze.run(place.folder, CODE, 2)
    assert max(most) == 2


def test_the_first_error_is_raised_when_the_others_have_ended(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    together, ended = threading.Barrier(3), []

    def fails_or_ends_later(*arguments: str) -> None:
        number = int(arguments[arguments.index("--run") + 1])
        together.wait(timeout=20)
        if number < 3:
            raise UserError(f"Run {number} failed.")
        time.sleep(0.2)
        ended.append(number)

    write_runs(place, "default", OTHER_TOKEN)
    monkeypatch.setattr(freeze, "run_fresh", fails_or_ends_later)
    with pytest.raises(UserError, match=r"Run 1 failed\."):
        freeze.run(place.folder, CODE, 3)
    assert ended == [3]
    assert not (place.folder / "frozen.json").exists()
