from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from typing import Any

import pytest

from exactgraph.canonical import short
from exactgraph.environment import facts, nvml, probe, threads
from exactgraph.environment.device import cuda_device
from exactgraph.refusal import UserError


def fresh(code: str, **variables: str) -> Any:
    """The JSON that ``code`` prints in a fresh process."""
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **variables}, check=True, capture_output=True, text=True
    )
    return json.loads(done.stdout.splitlines()[-1])


PROBE = "import json; from exactgraph.environment.probe import probe; print(json.dumps(probe('here')))"


def test_probe_has_the_agreed_form_and_its_key_is_of_its_facts() -> None:
    found = probe.probe("here")
    assert set(found) == {"slot", "host", "rehearsal", "gpu_uuid", "device", "environment", "precision", "refusal"}
    assert found["environment"]["key"] == short(found["environment"]["facts"])
    assert all(isinstance(value, str) for value in found["environment"]["facts"].values())
    assert found["rehearsal"] == (found["device"]["kind"] == "cpu")


def test_every_process_finds_the_same_key_whatever_its_thread_count_is_set_to() -> None:
    one, many = fresh(PROBE, OMP_NUM_THREADS="1"), fresh(PROBE, OMP_NUM_THREADS="7", MKL_NUM_THREADS="3")
    assert one == many


def test_a_variable_changes_the_key() -> None:
    changed = fresh(PROBE, TORCH_CUDNN_SDPA_DEPRIORITIZED="1")
    assert changed["environment"]["facts"]["variable TORCH_CUDNN_SDPA_DEPRIORITIZED"] == "1"
    assert changed["environment"]["key"] != probe.probe("here")["environment"]["key"]


def test_a_flag_changes_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    before = probe.present()
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    after = probe.present()
    assert before["environment"]["key"] != after["environment"]["key"]
    with pytest.raises(UserError, match=r"flag cudnn.benchmark was False and is True"):
        probe.check(before)


def test_check_passes_where_nothing_changed() -> None:
    now = probe.present()
    assert probe.check(now) == now


def test_check_names_another_device() -> None:
    elsewhere = copy.deepcopy(probe.present())
    elsewhere["device"]["id"] = "nvidia-a100-sm80-108sm-40g"
    with pytest.raises(UserError, match="belongs on nvidia-a100-sm80-108sm-40g and woke up on"):
        probe.check(elsewhere)


def test_check_lists_what_came_and_went() -> None:
    old = copy.deepcopy(probe.present())
    old["environment"]["facts"]["torch"] = "1.0"
    old["environment"]["facts"]["variable GONE"] = "1"
    del old["environment"]["facts"]["tokenizers"]
    old["environment"]["key"] = short(old["environment"]["facts"])
    with pytest.raises(UserError) as caught:
        probe.check(old)
    for part in ("torch was 1.0 and is", "variable GONE was 1 and is unset", "tokenizers was unset and is"):
        assert part in str(caught.value)


def test_a_key_that_is_not_of_its_facts_is_not_believed() -> None:
    forged = copy.deepcopy(probe.present())
    forged["environment"]["key"] = "0" * 16
    with pytest.raises(UserError, match="does not fit its own facts"):
        probe.check(forged)


def test_a_gpu_that_torch_cannot_reach_is_no_rehearsal(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    h200 = cuda_device("NVIDIA H200", (9, 0), 132, 143771 << 20)
    monkeypatch.setattr(nvml, "gpus", lambda: [nvml.Gpu(h200, "GPU-aa", 0, "GPU-aa")])
    monkeypatch.setattr(nvml, "driver_version", lambda: "580.1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(UserError, match="install a CUDA build of torch"):
        probe.this_device()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert probe.this_device()[0].kind == "cpu"


def test_an_old_gpu_is_a_result_of_the_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "this_device", lambda: (cuda_device("Tesla V100", (7, 0), 80, 16 << 30), "GPU-aa"))
    monkeypatch.setattr(facts, "collect", lambda device: {"torch": "x"})
    found = probe.probe("old")
    assert found["refusal"]["reason"] == "gpu-too-old"
    assert found["gpu_uuid"] == "GPU-aa"


def test_settle_overrules_the_job_environment() -> None:
    code = (
        "import json, torch; from exactgraph.environment.threads import settle; "
        "n = settle(); print(json.dumps([n, torch.get_num_threads()]))"
    )
    assert fresh(code, OMP_NUM_THREADS="7") == [threads.usable(), threads.usable()]


def test_hardware_threads_of_one_core_count_once(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3, 4})
    for cpu, siblings in {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}.items():
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{siblings}\n")
    assert threads.usable(tmp_path) == 3


@pytest.mark.gpu
def test_gpu_facts_are_all_read() -> None:
    found = probe.probe("gpu")
    read = found["environment"]["facts"]
    assert found["gpu_uuid"].startswith(("GPU-", "MIG-"))
    assert not [name for name, value in read.items() if "unreadable" in value or value in ("none", "not loaded")]
    assert {"driver", "cuda", "cublas", "cublaslt", "cudnn", "triton", "sdp.choice"} <= set(read)
    assert fresh(PROBE)["environment"] == found["environment"]
