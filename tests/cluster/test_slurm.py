"""Whole workflows through a real sbatch, and jobs that Slurm ends."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from clusters import Project, Slurm, overlap, serialised, wait_for

from exactgraph.canonical import read_json

SLOT = {"gpu": "fake", "walltime": 10, "memory": 2}
TROUBLED = {"cancelled": "c", "late": "d", "away": "drained"}


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    """A project with two slots, whose machines differ."""
    project = Project(tmp_path, {"first": {**SLOT, "partition": "a"}, "second": {**SLOT, "partition": "b"}})
    yield project
    project.end()


@pytest.fixture(scope="module")
def troubled(slurm: Slurm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A project whose jobs hang on two slots and wait on a third, running; one of the jobs has been cancelled."""
    slots = {slot: {**SLOT, "partition": partition, "walltime": 1} for slot, partition in TROUBLED.items()}
    project = Project(tmp_path_factory.mktemp("troubled"), slots)
    slurm.hang("gpu-c")
    slurm.hang("gpu-d")
    # A job has a minute to run, so one that is to be able to end within 62 seconds waits for two at most.
    waits = ("--default-resources", "cpus_per_task=1", "slurm_extra='--deadline=now+62seconds'")
    project.start(*waits, "--", *(f"artifacts/slots/{slot}/probe.json" for slot in slots))
    subprocess.run(["scancel", wait_for(lambda: slurm.running("gpu-c"))], check=True)
    yield project
    project.end()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("troubled")  # it waits for minutes, mostly for a time limit: better beside this than after it
def test_two_slots_end_with_receipts_and_a_second_submission_does_nothing(slurm: Slurm, project: Project) -> None:
    run = project.start("confirm")
    printed, _ = run.communicate(timeout=800)
    assert run.returncode == 0, printed
    assert "REHEARSAL: this machine" not in printed

    receipts = list(project.folder.glob("artifacts/*/*/*/*/receipt.json"))
    assert len(receipts) == 2
    for receipt in receipts:
        assert read_json(receipt)["predicate"]["confirmation"]["confirmed"] == "step"
        project.verify(receipt)

    on_a, on_b = slurm.steps("gpu-a"), slurm.steps("gpu-b")
    assert len(on_a) == len(on_b)
    assert {step.gpu for step in on_a + on_b} == {"0"}
    assert serialised(on_a)
    assert serialised(on_b)
    assert overlap(on_a, on_b) > 0

    second = project.start("confirm")
    printed, _ = second.communicate(timeout=120)
    assert second.returncode == 0, printed
    assert "Nothing to be done" in printed
    assert slurm.steps("gpu-a") + slurm.steps("gpu-b") == on_a + on_b


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_cancelled_late_and_drained_jobs_are_reported_and_tried_again(troubled: Project) -> None:
    (run,) = troubled.started
    printed, _ = run.communicate(timeout=500)
    assert run.returncode == 1, printed
    assert "Slot away: no node could be asked" in printed
    for status, times in (("CANCELLED", 1), ("TIMEOUT", 1), ("DEADLINE", 2)):
        assert printed.count(f"SLURM status is: '{status}'") == times, printed
    assert {path.parent.name for path in troubled.folder.glob("artifacts/slots/*/probe.json")} == {"cancelled", "late"}
