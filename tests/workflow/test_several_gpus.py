"""A machine with several GPUs: slots that share a key, and whether every GPU has work."""

from __future__ import annotations

import pytest
from project import RUN_ALL, Project

PINNED = {"first": {"visible": "0"}, "second": {"visible": "1"}}
IDLE = "Of 2 GPUs, 1 at a time will have work: snakemake --cores 2 --resources gpu=2 confirm uses all of them."


def test_two_slots_on_identical_gpus_have_one_result(project: Project) -> None:
    project.configure(devices=PINNED)
    project.machine(gpus=2)
    printed = project.run("--cores", "2", "--resources", "gpu=2", "--", "confirm")
    assert "will have work" not in printed
    assert project.ran() == RUN_ALL - {"probe local"} | {"probe first", "probe second"}
    project.find("receipt.json")
    assert project.run("--cores", "2", "--resources", "gpu=2", "--", "confirm").count("Nothing to be done") == 1
    # A slot that becomes another GPU is probed again, and nothing more.
    project.configure(devices={**PINNED, "second": {"visible": "2"}})
    project.run("--cores", "2", "--resources", "gpu=2", "--", "confirm")
    assert project.ran() == {"probe second"}


@pytest.mark.parametrize("arguments", [(), ("--cores", "2"), ("--resources", "gpu=2")], ids=lambda given: " ".join(given))
def test_gpus_that_will_have_nothing_to_do_are_said(project: Project, arguments: tuple[str, ...]) -> None:
    project.machine(gpus=2)
    assert IDLE in project.run(*arguments, "--until", "probe", "--", "confirm")
    project.machine(gpus=1)
    assert "will have work" not in project.run(*arguments, "--until", "probe", "--", "confirm")


def test_gpus_that_no_slot_is_are_no_loss(project: Project) -> None:
    project.machine(gpus=8)
    project.configure(devices=PINNED)
    assert IDLE in project.run("--until", "probe", "--", "confirm")
    project.configure(devices={"first": {"visible": 5}})
    assert "will have work" not in project.run("--until", "probe", "--", "confirm")
