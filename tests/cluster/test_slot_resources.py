from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from clusters import ROOT
from snakemake.exceptions import WorkflowError
from snakemake.utils import validate

from exactgraph.canonical import read_json, write_json
from exactgraph.workflow.planner import Planner
from exactgraph.workflow.serving import pins, serving
from exactgraph.workflow.slots import resources

PLAIN = {"walltime": 240, "memory": 32}
WHOLE = {**PLAIN, "partition": "gpu", "gpu": "h200", "account": "lab", "walltime": 60}
KEY = {"device": "nvidia-h200", "env": "49cf93e54c085e3d"}


class Wildcards(dict[str, str]):
    """As Snakemake's: entries are attributes too."""

    __getattr__ = dict.__getitem__


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def probed(folder: Path, slot: str, device: str = KEY["device"], env: str = KEY["env"]) -> None:
    probe = {"device": {"id": device}, "environment": {"key": env}}
    write_json(folder / "artifacts" / "slots" / slot / "probe.json", probe)


def asked(slots: dict[str, Any], attempt: int = 1, **wildcards: str) -> dict[str, Any]:
    values = {name: value(Wildcards(wildcards), attempt=attempt) for name, value in resources(slots).items()}
    return {name: value for name, value in values.items() if value is not None}


def test_a_slot_has_a_walltime_and_memory_and_no_unknown_fields() -> None:
    schema = str(ROOT / "workflow" / "schemas" / "config.schema.yaml")
    config: dict[str, Any] = {"devices": {"here": {}, "there": dict(WHOLE)}}
    validate(config, schema)
    assert config["devices"] == {"here": PLAIN, "there": WHOLE}
    for wrong in ({"queue": "gpu"}, {"walltime": "1h"}, {"memory": 0}, {"gpu": "'h200'"}):
        with pytest.raises(WorkflowError):
            validate({"devices": {"here": wrong}}, schema)


def test_a_probe_asks_in_the_name_of_its_slot() -> None:
    slots = {"here": PLAIN, "there": WHOLE}
    assert asked(slots, slot="here") == {"runtime": 240, "mem_mb": 32768}
    there = asked(slots, slot="there")
    assert there == {
        "slurm_partition": "gpu",
        "slurm_account": "lab",
        "gpu_model": "h200",
        "runtime": 60,
        "mem_mb": 32768,
    }


def test_a_job_of_a_key_asks_in_the_name_of_a_slot_that_was_seen_with_it(folder: Path) -> None:
    probed(folder, "other", device="nvidia-a100")
    probed(folder, "older", env="0" * 16)
    probed(folder, "right")
    slots = {"never": PLAIN, "other": PLAIN, "older": PLAIN, "right": WHOLE}
    assert serving(slots, KEY["device"], KEY["env"]) == ["right"]
    assert asked(slots, **KEY)["slurm_partition"] == "gpu"


def test_a_job_that_failed_is_tried_on_the_next_slot_that_serves_it(folder: Path) -> None:
    slots = {name: {**PLAIN, "partition": name} for name in ("one", "two", "three")}
    for slot in ("one", "three"):
        probed(folder, slot)
    tried = [asked(slots, attempt, **KEY)["slurm_partition"] for attempt in (1, 2, 3)]
    assert tried == ["one", "three", "one"]


def test_a_job_that_no_slot_serves_is_still_a_job(folder: Path) -> None:
    assert asked({"here": WHOLE}, **KEY)["slurm_partition"] == "gpu"
    assert asked({"here": WHOLE}, slot="unknown")["slurm_partition"] == "gpu"


def test_the_probes_are_read_once_for_all_resources_and_again_when_they_change(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []

    def counts(path: Path) -> Any:
        read.append(path)
        return read_json(path)

    monkeypatch.setattr("exactgraph.workflow.serving.read_json", counts)
    probed(folder, "one")
    probed(folder, "two", device="nvidia-a100")
    slots = {"one": WHOLE, "two": PLAIN}
    for _ in range(3):
        assert asked(slots, **KEY)["slurm_partition"] == "gpu"
    assert len(read) == 2
    probed(folder, "two")
    os.utime(folder / "artifacts" / "slots" / "two" / "probe.json", ns=(1, 1))
    assert serving(slots, KEY["device"], KEY["env"]) == ["one", "two"]
    assert len(read) == 3


def test_jobs_may_use_the_gpus_that_the_slots_of_their_key_are(folder: Path) -> None:
    root = folder / "artifacts"

    def may_use(**devices: dict[str, Any]) -> list[str] | None:
        write_json(root / "config.json", {"devices": devices})
        return pins(root, KEY["device"], KEY["env"])

    probed(folder, "first")
    probed(folder, "second")
    probed(folder, "other", device="nvidia-a100")
    assert pins(root, KEY["device"], KEY["env"]) is None, "nothing is configured"
    first, second, other = {"visible": "0"}, {"visible": "1"}, {"visible": "2"}
    assert may_use(first=first, second=second, other=other) == ["0", "1"]
    assert may_use(first={"visible": 0}, other=other, never=second) == ["0"]
    assert may_use(first=first, second={}) is None, "one of them is any GPU"
    assert may_use(other=other) is None, "none of them serves: the job itself says that it woke up in the wrong place"


def test_a_slot_names_gpus_as_the_variable_does() -> None:
    schema = str(ROOT / "workflow" / "schemas" / "config.schema.yaml")
    for right in (0, "0", "0,1", "GPU-c16cae95-af80-14cf-872a-cc6171006dbe", "MIG-1"):
        validate({"devices": {"here": {"visible": right}}}, schema)
    for wrong in ("", -1, "0; rm", "all of them"):
        with pytest.raises(WorkflowError):
            validate({"devices": {"here": {"visible": wrong}}}, schema)


def test_a_scheduler_is_not_told_which_gpu_to_take() -> None:
    config: dict[str, Any] = {"devices": {"here": {}, "there": {"visible": "1"}}}
    validate(config, str(ROOT / "workflow" / "schemas" / "config.schema.yaml"))
    planner = Planner(config, SimpleNamespace(local_exec=False))
    with pytest.raises(SystemExit, match="Slot there: its GPUs are the scheduler's choice"):
        planner._check_profile()
    del config["devices"]["there"]
    planner._check_profile()
