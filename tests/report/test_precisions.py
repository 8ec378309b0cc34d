"""What each precision gives, from receipts alone."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from made_receipts import minicpm5, not_faster, rehearsal
from typer.testing import CliRunner

from exactgraph.canonical import write_json
from exactgraph.cli import app
from exactgraph.report.precisions import WIDTH, precisions


def of(precision: str, receipt: dict[str, Any]) -> dict[str, Any]:
    changed = copy.deepcopy(receipt)
    changed["predicate"]["precision"] = precision
    return changed


def row(text: str, precision: str) -> list[str]:
    (found,) = [line.split() for line in text.splitlines() if line.strip().startswith(precision)]
    return found


def test_the_precisions_of_a_model_stand_below_each_other() -> None:
    receipt = minicpm5()
    predicate = receipt["predicate"]
    text = precisions([of("fp16", receipt), of("bf16", receipt), of("fp32", receipt)])
    lines = text.splitlines()
    places = [
        next(place for place, line in enumerate(lines) if line.strip().startswith(name)) for name in ("fp32", "bf16", "fp16")
    ]
    assert places == sorted(places)
    assert text.count(predicate["device"]["name"]) == 1
    assert max(map(len, lines)) <= WIDTH
    name = predicate["confirmation"]["confirmed"]
    timing = predicate["candidates"][name]["timing"]
    figures = [f"{timing['eager_tok_s']:.1f}", f"{timing['candidate_tok_s']:.1f}", f"{timing['ratio']:.2f}x"]
    assert row(text, "bf16")[:6] == ["bf16", name, predicate["candidates"][name]["grade"], *figures]


def test_another_model_has_a_table_of_its_own() -> None:
    receipt = minicpm5()
    other = copy.deepcopy(receipt)
    other["subject"][0]["name"] = "another@0123456789ab"
    text = precisions([receipt, other])
    assert text.count("ratio to eager") == 2
    assert text.index("another@") < text.index(receipt["subject"][0]["name"])


def test_nothing_confirmed_is_said_with_eagers_own_speed() -> None:
    receipt = not_faster()
    found = row(precisions([receipt]), receipt["predicate"]["precision"])
    assert found[1:3] == ["-", "not-faster"]
    assert float(found[3]) > 0
    assert found[4:] == ["-", "-"]


def test_a_rehearsal_has_no_speed() -> None:
    receipt = rehearsal()
    confirmed = receipt["predicate"]["confirmation"]["confirmed"]
    found = row(precisions([receipt]), receipt["predicate"]["precision"])
    assert found[1] == confirmed
    assert found[3:] == ["-", "-", "-"]


def test_the_command_takes_a_receipt(tmp_path: Path) -> None:
    write_json(tmp_path / "receipt.json", minicpm5())
    done = CliRunner().invoke(app, ["precisions", str(tmp_path / "receipt.json")])
    assert done.exit_code == 0
    assert "ratio to eager" in done.stdout
