"""The command line, in processes of its own: sentences and exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import exactgraph
from exactgraph.canonical import write_json
from exactgraph.workflow.stage_digest import stage_digest

KEY = Path("model@0123456789ab/device/environment/protocol")


def command(*arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "exactgraph", *map(str, arguments)], capture_output=True, text=True, cwd=cwd, check=False
    )


def sentence(*arguments: str | Path) -> str:
    """What the user reads when it is their error: one line on standard error, nothing on standard output."""
    done = command(*arguments)
    assert done.returncode == 2, done
    assert done.stdout == ""
    assert done.stderr.startswith("exactgraph: ")
    assert len(done.stderr.splitlines()) == 1, done.stderr
    return done.stderr.removeprefix("exactgraph: ").strip()


@pytest.fixture
def key(tmp_path: Path) -> Path:
    folder = tmp_path / KEY
    write_json(folder / "frozen.json", {"status": "baseline-unstable"})
    return folder


def test_the_version() -> None:
    done = command("--version")
    assert (done.returncode, done.stdout.strip()) == (0, exactgraph.__version__)


def test_help_names_what_people_use() -> None:
    done = command("--help")
    assert done.returncode == 0
    for name in ("table", "status", "verify", "doctor", "confirm"):
        assert name in done.stdout
    assert "confirm-one" not in done.stdout


@pytest.mark.parametrize("stage", ["build", "validate"])
def test_an_unknown_candidate_is_a_sentence(key: Path, stage: str) -> None:
    said = sentence(stage, key, "--candidate", "C999")
    assert said.startswith("There is no candidate 'C999'")
    assert "C022" in said
    assert "step" in said
    assert not (key / "candidates").exists()


def test_a_stage_whose_code_changed_since_it_was_planned_is_a_sentence(key: Path) -> None:
    said = sentence("build", key, "--candidate", "step", "--code", "0" * 16)
    assert said == "The code of stage build changed while the workflow ran; run it again."
    assert not (key / "candidates").exists()


def test_a_stage_runs_with_the_code_that_was_planned_and_records_it(key: Path) -> None:
    code = stage_digest("build", "step")
    done = command("build", key, "--candidate", "step", "--code", code)
    assert done.returncode == 0, done.stderr
    plan = json.loads((key / "candidates" / "step" / "plan.json").read_bytes())
    assert (plan["code"], plan["status"]) == (code, "skipped")


def test_each_candidate_has_a_code_of_its_own(key: Path) -> None:
    codes = {stage_digest("build", name) for name in ("null", "C022", "step")}
    assert len(codes) == 3
    assert sentence("build", key, "--candidate", "C022", "--code", stage_digest("build", "step")).endswith("run it again.")


@pytest.mark.parametrize("name", ["table", "status"])
def test_a_folder_without_a_run_is_a_sentence(tmp_path: Path, name: str) -> None:
    assert "There are no receipts in" in sentence(name, tmp_path)


def test_an_environment_that_no_probe_found_is_a_sentence(tmp_path: Path) -> None:
    said = sentence("environment", tmp_path / "model@1" / "device" / "key", "--probes", tmp_path)
    assert "was last seen as device in environment key" in said


def test_a_source_that_cannot_be_parsed_is_a_sentence(tmp_path: Path) -> None:
    assert "nonsense" in sentence("resolve", "nonsense", "--out", tmp_path / "out.json")
    assert not (tmp_path / "out.json").exists()


def test_a_receipt_that_is_not_there_is_not_verified(tmp_path: Path) -> None:
    done = command("verify", tmp_path / "receipt.json")
    assert done.returncode == 1
    assert done.stdout.startswith("no: the receipt")


def test_a_missing_option_is_said() -> None:
    done = command("build", "somewhere")
    assert done.returncode == 2
    assert "--candidate" in done.stderr


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["verify", "nowhere.json"], ["status", "nowhere"]])
def test_quick_commands_do_without_torch(arguments: list[str], tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from exactgraph.cli import main\n"
        f"sys.argv = ['exactgraph', *{arguments!r}]\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print('torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.stdout.splitlines()[-1] == "False", done
