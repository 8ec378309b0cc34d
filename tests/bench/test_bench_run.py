"""Whole benches of a tiny model: what is compared, what is timed, what is said."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from exactgraph.bench import eager, rows, stand
from exactgraph.bench.run import exit_code, run
from exactgraph.bench.settings import Settings
from exactgraph.bench.table import WIDTH, table
from exactgraph.candidates.null import Null
from exactgraph.canonical import canonical_bytes
from exactgraph.cli import app
from exactgraph.protocol.timing import Repetitions
from exactgraph.sources.download import download
from exactgraph.sources.resolve import resolve

QUICK = Settings(prompt_set="long", new_tokens=4, repetitions=2, warmups=0)
COMPARED = {"id", "claims", "control", "status", "why", "grade", "matches", "of", "logits_equal", "logits_of", "difference"}
TIMED = {"eager_tok_s", "tok_s", "ratio", "interval", "faster", "gb_s", "share_of_floor", "first_token_ms", "pairs"}
MEASURED = {"capture_s", "graph_mib", "peak_mib"}
COUNTED = {"graphs", "captured_steps", "eager_steps"}
pytestmark = pytest.mark.usefixtures("on_cpu")


def command(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["bench", *arguments, "--new-tokens", "4", "--repetitions", "1", "--warmups", "0"])
    return done.exit_code, done.stdout


def test_exact_candidates_have_every_field_and_no_speed_on_a_cpu(model_dir: Path) -> None:
    code, text = command(str(model_dir), "--candidates", "C022,step", "--json")
    result = json.loads(text)
    assert code == 0
    assert text.encode() == canonical_bytes(result)
    assert set(result) == {
        *("versions", "model", "device", "gpu_uuid", "environment", "protocol"),
        *("emulated", "floor", "eager", "rows"),
    }
    assert (result["emulated"], result["floor"], result["eager"]["reproduces"]) == (True, None, True)
    assert {"exactgraph", "python", "torch", "transformers"} <= set(result["versions"])
    assert len(result["environment"]["key"]) == 16
    assert [prompt["tokens"] for prompt in result["protocol"]["prompts"]] == [9, 33, 64, 100, 127, 200]
    assert (result["protocol"]["new_tokens"], result["protocol"]["dtype"]) == (4, "fp32")
    assert [row["id"] for row in result["rows"]] == ["C022", "step"]
    for row in result["rows"]:
        assert set(row) == COMPARED | TIMED | MEASURED | COUNTED
        assert (row["status"], row["grade"], row["difference"]) == ("exact", "bit-identical", None)
        assert (row["matches"], row["of"], row["logits_equal"], row["logits_of"]) == (6, 6, 24, 24)
        assert all(row[field] is None for field in TIMED | MEASURED)
        assert row["graphs"] > 0


def test_other_bits_are_a_difference_and_exit_code_1(model_dir: Path) -> None:
    code, text = command(str(model_dir), "--candidates", "null,wrong-ulp,wrong-late")
    assert code == 1
    assert text.startswith("EMULATED on cpu-")
    assert "First logits with other bits at prompt heldout/0, step 0" in text
    assert "Confirmation sees no sequence longer" in text  # a refusal is said, and is no difference
    assert not any(speed in text for speed in ("tok/s", "GB/s", "MiB"))
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= WIDTH


@pytest.fixture
def moving(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eager whose second recording has another token."""
    honest, calls = eager.record_sets, []

    def record(*arguments: Any) -> dict[str, Any]:
        sets = honest(*arguments)
        calls.append(sets)
        if len(calls) == 2:
            sets["long"][0]["tokens"][2] += 1
        return sets

    monkeypatch.setattr(eager, "record_sets", record)


@pytest.mark.usefixtures("moving")
def test_eager_that_moves_ends_the_bench(model_dir: Path) -> None:
    result = run(str(model_dir), "null,step", QUICK)
    assert result["eager"]["reproduces"] is False
    assert (result["eager"]["difference"]["prompt"], result["eager"]["difference"]["step"]) == ("long/0", 2)
    assert {row["status"] for row in result["rows"]} == {"not-compared"}
    assert exit_code(result) == 1
    assert "eager does not reproduce itself here: first other token at prompt long/0, step 2" in table(result)


def test_a_candidate_that_dies_leaves_the_others_alone(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: Any) -> Any:
        raise ZeroDivisionError("no reason")

    monkeypatch.setattr(Null, "install", broken)
    result = run(str(model_dir), "null,C022", QUICK)
    assert [row["status"] for row in result["rows"]] == ["failed", "exact"]
    assert result["rows"][0]["why"] == "ZeroDivisionError: no reason"
    assert exit_code(result) == 0


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Timing as on a GPU, with figures that mean nothing."""
    honest = stand.open_stand

    @contextmanager
    def open_timed(*arguments: Any) -> Iterator[stand.Stand]:
        with honest(*arguments) as opened:
            yield replace(opened, timed=True)

    monkeypatch.setattr(stand, "open_stand", open_timed)
    monkeypatch.setattr(eager, "copy_bandwidth", lambda device: 1e12)


@pytest.mark.usefixtures("timed")
def test_only_what_is_exact_is_timed(model_dir: Path) -> None:
    result = run(str(model_dir), "step,wrong-ulp", QUICK)
    exact, wrong = result["rows"]
    assert (exact["matches"], exact["of"]) == (2, 2)
    assert all(exact[field] is not None for field in TIMED)
    assert exact["gb_s"] == pytest.approx(result["floor"]["step_weight_bytes"] * exact["tok_s"] / 1e9)
    assert exact["share_of_floor"] == pytest.approx(exact["gb_s"] / 1e3)
    assert set(exact["first_token_ms"]) == {"eager", "candidate"}
    assert len(exact["pairs"]) == 2
    assert result["eager"]["tok_s"] == pytest.approx(exact["eager_tok_s"])
    assert (wrong["status"], wrong["matches"], wrong["of"]) == ("rejected", 1, 1)
    assert all(wrong[field] is None for field in TIMED)
    text = table(result)
    assert "tok/s" in text
    assert max(map(len, text.splitlines())) <= WIDTH


@pytest.mark.usefixtures("timed")
def test_a_candidate_that_goes_wrong_while_timed_has_no_figures(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Repetitions.paired

    def paired(self: Repetitions, *arguments: Any) -> None:
        honest(self, *arguments)
        self.compare(arguments[2][0], [])

    monkeypatch.setattr(Repetitions, "paired", paired)
    (row,) = run(str(model_dir), "null", QUICK)["rows"]
    assert (row["status"], row["matches"], row["of"], row["difference"]["kind"]) == ("rejected", 2, 3, "length")
    assert all(row[field] is None for field in TIMED)


@pytest.mark.usefixtures("timed")
def test_eager_that_moves_while_timed_is_said(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def moved(self: Repetitions, question: Any, tokens: list[int]) -> None:
        raise rows.EagerMoved({"prompt": question.id, "step": 1, "expected": 1, "got": 2, "margin": 0.5, "kind": "token"})

    monkeypatch.setattr(Repetitions, "_check_eager", moved)
    result = run(str(model_dir), "null", QUICK)
    (row,) = result["rows"]
    assert (row["status"], row["difference"]["step"], row["tok_s"]) == ("baseline-moved", 1, None)
    assert row["why"] == "While timed, eager left its own baseline at long/0, step 1."
    assert exit_code(result) == 1


def test_a_missing_model_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    arguments = [sys.executable, "-m", "exactgraph", "bench", "random:tiny-llama?seed=0", "--candidates", "step"]
    done = subprocess.run(arguments, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("exactgraph: random:tiny-llama?seed=0 was not downloaded to artifacts")
    assert len(done.stderr.splitlines()) == 1


def test_a_speech_model_is_asked_about_its_windows(tmp_path: Path) -> None:
    resolved = resolve("random:tiny-whisper?seed=0")
    download(resolved, tmp_path / "model", tmp_path / "model.json")
    result = run(str(tmp_path), "null,wrong-ulp,step", replace(QUICK, prompt_set="heldout"))
    assert [(prompt["id"], prompt["tokens"]) for prompt in result["protocol"]["prompts"][:2]] == [
        ("heldout/0", 1),
        ("heldout/1", 1),
    ]
    found = {row["id"]: (row["status"], row["matches"], row["of"]) for row in result["rows"]}
    assert found["null"] == ("exact", 12, 12)
    assert found["wrong-ulp"][0] == "rejected"
    assert found["step"] == ("refused", None, None)
    assert "tok/s" not in table(result)
