"""No byte of a receipt or of its evidence may change unnoticed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from evidence_world import PROMPTS, World, altered, traces

from exactgraph.canonical import canonical_bytes, file_digest, read_json, write_json
from exactgraph.receipts.statement import derive, write
from exactgraph.receipts.verify import verify
from exactgraph.refusal import Refused

POSITIONS = 150  # of the receipt, spread evenly


@pytest.fixture
def receipt(world: World) -> Path:
    key_dir = world.write()
    write(key_dir)
    return key_dir / "receipt.json"


def flip(path: Path, position: int, bit: int) -> bytes:
    """Flip one bit on disk; returns the bytes as they were."""
    before = path.read_bytes()
    bent = bytearray(before)
    bent[position] ^= 1 << bit
    path.write_bytes(bent)
    return before


def no(path: Path) -> list[str]:
    result = verify(path)
    assert not result.ok
    return [line for line in result.lines if line.startswith("no: ")]


def test_a_true_receipt(receipt: Path) -> None:
    result = verify(receipt)
    assert result.ok, result.lines
    assert any("all 23 evidence files" in line for line in result.lines), result.lines
    assert "note: the weights are not here, so their digests were not recomputed" in result.lines


def test_every_flipped_byte_of_the_receipt(receipt: Path) -> None:
    size = receipt.stat().st_size
    for position in range(0, size, max(1, size // POSITIONS)):
        before = flip(receipt, position, position % 7)
        assert no(receipt), position
        receipt.write_bytes(before)
    assert verify(receipt).ok


def test_every_flipped_byte_of_the_evidence(receipt: Path) -> None:
    for name in read_json(receipt)["predicate"]["evidence"]:
        path = Path(str(receipt.parent / name))
        size = path.stat().st_size
        for position in (0, size // 3, size // 2, size - 2, size - 1):
            before = flip(path, position, position % 8)
            assert no(receipt) == [
                f"no: the evidence file {name} is not the one that the receipt was made from: its SHA-256 differs"
            ]
            path.write_bytes(before)
        path.unlink()
        assert no(receipt) == [f"no: the evidence file {name} is missing"]
        path.write_bytes(before)
    assert verify(receipt).ok


def reseal(receipt: Path) -> None:
    """What a forger would do next: put the new digests of all files into the receipt, wherever the old ones stand."""
    text = receipt.read_text()
    for name, old in read_json(receipt)["predicate"]["evidence"].items():
        text = text.replace(old, file_digest(Path(str(receipt.parent / name))))
    receipt.write_text(text)


def test_forged_evidence_with_a_forged_receipt(receipt: Path) -> None:
    path = receipt.parent / "candidates" / "wrong-ulp" / "validation.json"
    value = read_json(path)
    value |= {"status": "exact", "grade": "bit-identical"}
    write_json(path, value)
    reseal(receipt)
    assert no(receipt) == [
        "no: no receipt follows from the evidence: The validation of wrong-ulp says exact (bit-identical); "
        "its comparison gives rejected (None)."
    ]


def test_a_forged_statement(receipt: Path) -> None:
    value = read_json(receipt)
    value["predicate"]["candidates"]["step"]["timing"]["ratio"] = 9.0
    write_json(receipt, value)
    assert no(receipt) == [
        "no: the evidence gives another receipt (it differs in candidates): altered, or made by another exactgraph"
    ]


def test_evidence_of_another_form_is_a_no_and_no_traceback(receipt: Path) -> None:
    path = receipt.parent / "frozen.json"
    for content in (b"[]", b"{}", b'{"attempts": [3]}', b"not json", b"\xff\xfe"):
        path.write_bytes(content)
        reseal(receipt)
        assert "no receipt follows from the evidence" in no(receipt)[0]


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"null", b"\xff", b'{"predicate": {}}', b"[" * 5000])
def test_what_is_no_receipt(receipt: Path, content: bytes) -> None:
    receipt.write_bytes(content)
    assert no(receipt)


def test_not_canonical(receipt: Path) -> None:
    receipt.write_text(json.dumps(read_json(receipt), indent=1))
    assert no(receipt) == ["no: the receipt's bytes are not the canonical form of what it says"]


def test_a_receipt_may_not_point_elsewhere(receipt: Path) -> None:
    value = read_json(receipt)
    value["predicate"]["evidence"]["../../../../../../etc/passwd"] = "0" * 64
    write_json(receipt, value)
    assert "does not conform to its schema" in no(receipt)[0]


def test_missing_receipt(tmp_path: Path) -> None:
    assert "cannot be read" in no(tmp_path / "receipt.json")[0]


def test_a_copied_bundle(receipt: Path, tmp_path: Path) -> None:
    model = receipt.parents[3]
    bundle = tmp_path / "docs" / "evidence" / "nvidia-test" / model.name
    shutil.copytree(model, bundle)
    copied = bundle / receipt.relative_to(model)
    shutil.rmtree(model)
    assert verify(copied).ok
    renamed = copied.parent.with_name("0" * 16)
    copied.parent.rename(renamed)
    assert "The protocol folder is named 0000000000000000" in no(renamed / "receipt.json")[0]


def test_a_relative_path(receipt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(receipt.parent)
    assert verify(Path("receipt.json")).ok


def test_weights(world: World) -> None:
    folder = world.weights()
    key_dir = world.write()
    write(key_dir)
    result = verify(key_dir / "receipt.json")
    assert result.ok
    assert "yes: the model's files and its tensors have the digests of its manifest" in result.lines
    for path in (folder / "model.safetensors", folder / "config.json"):
        before = flip(path, path.stat().st_size - 1, 0)
        assert no(key_dir / "receipt.json")[0].startswith("no: the weights: ")
        path.write_bytes(before)


def test_weights_that_are_not_the_tensors_of_the_digest(world: World) -> None:
    world.weights()
    world.model["weights_digest"] = "0" * 64
    key_dir = world.write()
    write(key_dir)
    assert no(key_dir / "receipt.json") == ["no: the weights: The tensors do not have the digest that the manifest says."]


def test_rerun(receipt: Path) -> None:
    asked: list[tuple[Path, str]] = []

    def good(key_dir: Path, candidate: str) -> dict[str, list[dict[str, Any]]]:
        asked.append((key_dir, candidate))
        return traces(*PROMPTS)

    result = verify(receipt, good)
    assert result.ok
    assert asked == [(receipt.parent, "step")]
    assert result.lines[-1] == "yes: run again in a fresh process, step was bit-identical on 6 prompts"


def test_rerun_that_differs(receipt: Path) -> None:
    result = verify(receipt, lambda *_: altered(traces(*PROMPTS), "long/0", 12))
    assert not result.ok
    assert "did not reproduce the baseline: first other token at prompt long/0, step 12: 7 instead of 1012" in result.lines[-1]


def test_rerun_of_a_lower_grade(receipt: Path) -> None:
    result = verify(receipt, lambda *_: altered(traces(*PROMPTS), "long/0", 12, token=False))
    assert not result.ok
    assert "first logits with other bits" in result.lines[-1]


def test_rerun_that_leaves_something_out(receipt: Path) -> None:
    result = verify(receipt, lambda *_: traces("heldout", "confirm"))
    assert not result.ok
    assert result.lines[-1] == "no: the confirmation of step was run again without long"


def test_rerun_elsewhere(receipt: Path) -> None:
    def refuse(key_dir: Path, candidate: str) -> dict[str, list[dict[str, Any]]]:
        raise Refused("other-device", "This GPU is another one.")

    result = verify(receipt, refuse)
    assert not result.ok
    assert result.lines[-1] == "no: the confirmation of step could not be run again: This GPU is another one."


def test_rerun_of_nothing(world: World) -> None:
    for name in ("step", "C022"):
        world.validate(name, ratio=1.0)
    world.end("not-faster", [], "skipped")
    key_dir = world.write()
    write(key_dir)

    def never(key_dir: Path, candidate: str) -> dict[str, list[dict[str, Any]]]:
        raise AssertionError("nothing was confirmed")

    result = verify(key_dir / "receipt.json", never)
    assert result.ok
    assert "nothing to run again" in result.lines[-1]


def test_no_rerun_of_a_false_receipt(receipt: Path) -> None:
    flip(receipt.parent / "protocol.json", 3, 0)

    def never(key_dir: Path, candidate: str) -> dict[str, list[dict[str, Any]]]:
        raise AssertionError("evidence that was changed must not be run")

    assert not verify(receipt, never).ok


def test_derive_and_verify_agree(receipt: Path) -> None:
    assert canonical_bytes(derive(receipt.parent)) == receipt.read_bytes()
