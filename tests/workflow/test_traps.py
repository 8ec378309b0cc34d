"""The gaps below Snakemake's checkpoints: half-written files, failed re-runs, kills, lost records, two runs at once."""

from __future__ import annotations

import os
import signal
import time
from base64 import urlsafe_b64encode
from pathlib import Path

import pytest
from project import RUN_ALL, SLUG, Project

from exactgraph.canonical import read_json

STEP = {"validate step", "rank", "confirm", "receipt", "report"}


def record_of(project: Project, output: Path) -> Path:
    """Snakemake 9.27.1's metadata record of an output."""
    name = urlsafe_b64encode(str(output.relative_to(project.folder)).encode()).decode()
    records = (path for path in (project.folder / ".snakemake" / "metadata").rglob("*") if path.is_file())
    (found,) = (path for path in records if _id(path) == name)
    return found


def _id(record: Path) -> str:
    """A long record name is cut into folders whose names begin with ``@``."""
    parts = record.parts[record.parts.index("metadata") + 1 :]
    return "".join(part.removeprefix("@") for part in parts)


def wait_for(project: Project, pattern: str) -> Path:
    """The file that a hanging stage leaves once it hangs."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if found := list(project.folder.glob(pattern)):
            return found[0]
        time.sleep(0.05)
    pytest.fail(f"{pattern} did not appear")


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def gone(pid: int) -> bool:
    end = time.monotonic() + 20
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.05)
    return not alive(pid)


def test_a_half_written_file_is_made_again(project: Project) -> None:
    """The run is killed while a stage works, and a half-written file lies under the output's name."""
    project.machine(trouble={"validate step": "kill-snakemake"})
    project.run(code=-signal.SIGKILL)
    done = project.ran() - {"validate step"}
    plan = next(project.folder.glob("artifacts/**/candidates/step/plan.json"))
    half = plan.with_name("validation.json")
    half.write_text('{"stage":"validate","code":"0","candidate":"step","status":"rejected"}')
    project.machine(trouble={})
    project.run()
    assert project.ran() == RUN_ALL - done
    assert read_json(half)["status"] == "exact"


@pytest.mark.slow
def test_a_half_written_discovery_is_made_again(project: Project) -> None:
    project.machine(trouble={"probe local": "kill-snakemake"})
    project.run(code=-signal.SIGKILL)
    half = project.folder / "artifacts" / "slots" / "local" / "probe.json"
    half.write_text('{"slot":')
    project.machine(trouble={})
    project.run()
    assert project.ran() == RUN_ALL


@pytest.mark.slow
def test_a_half_filled_model_folder_is_made_again(project: Project) -> None:
    project.machine(trouble={f"download {SLUG}": "kill-snakemake"})
    project.run(code=-signal.SIGKILL)
    commit = read_json(project.folder / "artifacts" / "sources" / f"{SLUG}.json")["commit"]
    folder = project.folder / "artifacts" / f"{SLUG}@{commit}"
    (folder / "model").mkdir(parents=True, exist_ok=True)
    (folder / "model" / "part").touch()
    (folder / "model.json").write_text("{}")
    project.machine(trouble={})
    project.run()
    assert f"download {SLUG}" in project.ran()
    assert {path.name for path in (folder / "model").iterdir()} == {"weights.json", ".snakemake_timestamp"}


def test_a_rerun_that_failed_is_run_again(finished: Project) -> None:
    finished.edit("stages/confirm.py")
    finished.machine(trouble={"confirm": "fail"})
    finished.run(code=1)
    assert finished.ran() == {"confirm"}
    # Its output and record are lost and the receipt looks up to date; still wrong, and still said.
    assert finished.find("receipt.json").exists()
    finished.run(code=1)
    assert finished.ran() == {"confirm"}
    finished.machine(trouble={})
    finished.run()
    assert finished.ran() == {"confirm", "receipt", "report"}


def test_a_killed_run_leaves_neither_job_nor_lock(finished: Project) -> None:
    finished.edit("candidates/step.py")
    finished.machine(trouble={"validate step": "hang"})
    run = finished.start()
    stage = int(wait_for(finished, "hangs.*").suffix[1:])
    assert alive(stage)
    run.kill()
    run.wait()
    assert gone(stage)
    assert list((finished.folder / ".snakemake" / "locks").glob("*.lock")), "the trap this is about has gone"
    finished.machine(trouble={})
    finished.run()
    assert finished.ran() == STEP


@pytest.mark.slow
def test_an_interrupted_run_stops_its_job(finished: Project) -> None:
    """Ctrl-C reaches every process of the terminal's group."""
    finished.edit("candidates/step.py")
    finished.machine(trouble={"validate step": "hang"})
    run = finished.start()
    stage = int(wait_for(finished, "hangs.*").suffix[1:])
    os.killpg(run.pid, signal.SIGINT)
    run.communicate(timeout=60)
    assert gone(stage)
    finished.machine(trouble={})
    finished.run()
    assert finished.ran() == STEP


def test_an_output_without_a_record_is_made_again(finished: Project) -> None:
    validation = next(finished.folder.glob("artifacts/**/candidates/step/validation.json"))
    record_of(finished, validation).unlink()
    finished.run()
    assert finished.ran() == {"validate step", "rank", "receipt", "report"}
    assert record_of(finished, validation).exists()


@pytest.mark.slow
def test_touched_outputs_are_vouched_for(finished: Project) -> None:
    """``--touch`` is how a person adopts files without a record; they must survive it."""
    validation = next(finished.folder.glob("artifacts/**/candidates/step/validation.json"))
    before = validation.read_bytes()
    record_of(finished, validation).unlink()
    finished.run("--touch", "confirm")
    assert validation.read_bytes() == before


def test_a_second_run_names_the_first_and_ends(finished: Project) -> None:
    finished.edit("candidates/step.py")
    finished.machine(trouble={"validate step": "hang"})
    first = finished.start()
    stage = int(wait_for(finished, "hangs.*").suffix[1:])
    ran = finished.ran()
    second = finished.start()
    printed, _ = second.communicate(timeout=60)
    assert second.returncode == 1
    assert f"Another run works in artifacts (process {first.pid})" in printed
    assert "Traceback" not in printed
    # A file asked for by name is no way around the lock.
    receipt = str(finished.find("receipt.json").relative_to(finished.folder))
    assert f"(process {first.pid})" in finished.run(receipt, code=1)
    assert finished.ran() == set()
    assert ran == {"build step", "validate step"}
    assert alive(stage)
    first.kill()
    first.wait()
    finished.machine(trouble={})
    finished.run()
    assert finished.ran() == STEP
