from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from clusters import ROOT
from snakemake.exceptions import WorkflowError
from snakemake.utils import validate

from exactgraph.canonical import write_json
from exactgraph.workflow.slots import resources, serving

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
    assert serving(slots, Wildcards(KEY)) == ["right"]
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
