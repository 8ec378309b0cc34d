from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from exactgraph.workflow.look import command, look

SLOT = {"partition": "gpu", "gpu": "h200", "account": "lab", "walltime": 60, "memory": 32}


def workflow(executor: str | None) -> SimpleNamespace:
    return SimpleNamespace(local_exec=executor is None, executor_plugin=SimpleNamespace(name=executor))


@pytest.fixture
def srun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An ``srun`` that runs the question here, as if in a job on its first GPU."""
    file = tmp_path / "srun"
    file.write_text('#!/bin/sh\nwhile [ "$1" != "$PYTHON" ]; do shift; done\nSLURM_JOB_ID=1 exec "$@"\n')
    file.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("PYTHON", sys.executable)
    return file


def test_the_question_asks_for_what_the_jobs_ask_for() -> None:
    asked = command(SLOT)
    assert {"--partition=gpu", "--account=lab", "--gpus=h200:1"} <= set(asked)
    assert "--gpus=1" in command({"walltime": 60, "memory": 32})


def test_without_a_scheduler_this_machine_is_looked_at() -> None:
    assert look("here", {}, workflow(None)) == look("there", {}, workflow(None))


def test_a_node_answers_the_same_whichever_gpu_it_gives(srun: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = []
    for gpu in ("0", "1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpu)
        answers.append(look("there", SLOT, workflow("slurm")))
    assert answers[0] == answers[1]
    assert json.loads(answers[0])["packages"]["torch"]
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    assert look("there", SLOT, workflow("slurm")) != answers[0]


def test_where_no_node_can_be_asked_each_look_is_new(srun: Path, capsys: pytest.CaptureFixture[str]) -> None:
    srun.write_text("#!/bin/sh\necho 'srun: error: all drained' >&2\nexit 1\n")
    assert look("there", SLOT, workflow("slurm")) != look("there", SLOT, workflow("slurm"))
    assert "Slot there: no node could be asked (srun: error: all drained)" in capsys.readouterr().err
    srun.unlink()
    assert look("there", SLOT, workflow("cluster-generic")) != look("there", SLOT, workflow("cluster-generic"))


def test_a_node_is_not_mistaken_for_the_one_that_snakemake_sits_on(
    srun: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    srun.write_text('#!/bin/sh\necho "${SLURM_JOB_ID-none} ${SLURM_CONF-none}"\n')
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_CONF", "/somewhere")
    assert look("there", SLOT, workflow("slurm")) == "none /somewhere"
    assert subprocess.run([srun], capture_output=True, text=True, check=True).stdout == "7 /somewhere\n"
