"""The machines there are, as NVML shows them: whole GPUs, slices, several of a kind, mixed ones, and broken ones."""

from __future__ import annotations

import pynvml
import pytest
from fake_nvml import Board, FakeNvml, Slice

from exactgraph.environment import nvml
from exactgraph.refusal import UserError

A100 = {"name": "NVIDIA A100-SXM4-40GB", "capability": (8, 0), "cores": 108 * 64, "mib": 40960}


def ids(monkeypatch: pytest.MonkeyPatch, *boards: Board) -> list[tuple[str, str, int]]:
    driver = FakeNvml(*boards)
    driver.install(monkeypatch)
    found = [(gpu.device.id, gpu.uuid, gpu.index) for gpu in nvml.gpus()]
    assert driver.started == 0
    return found


def test_identical_gpus_share_an_id(monkeypatch: pytest.MonkeyPatch) -> None:
    h200 = "nvidia-h200-sm90-132sm-141g"
    assert ids(monkeypatch, Board("GPU-a"), Board("GPU-b")) == [(h200, "GPU-a", 0), (h200, "GPU-b", 1)]


def test_a_mixed_node(monkeypatch: pytest.MonkeyPatch) -> None:
    found = ids(monkeypatch, Board("GPU-a", **A100), Board("GPU-b"))
    assert [device for device, _, _ in found] == ["nvidia-a100-sxm4-40gb-sm80-108sm-40g", "nvidia-h200-sm90-132sm-141g"]


def test_a_gpu_cut_by_mig_appears_as_its_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    slices = [Slice("MIG-1", "NVIDIA H200 MIG 3g.71gb", 60, 70000), Slice("MIG-2", "NVIDIA H200 MIG 1g.18gb", 16, 16384)]
    assert ids(monkeypatch, Board("GPU-a"), Board("GPU-b", slices=slices)) == [
        ("nvidia-h200-sm90-132sm-141g", "GPU-a", 0),
        ("nvidia-h200-sm90-60sm-69g-mig-3g-71gb", "MIG-1", 1),
        ("nvidia-h200-sm90-16sm-16g-mig-1g-18gb", "MIG-2", 1),
    ]


def test_another_jobs_gpu_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    found = ids(monkeypatch, Board("GPU-a", error=pynvml.NVMLError_NoPermission), Board("GPU-b"))
    assert [uuid for _, uuid, _ in found] == ["GPU-b"]


@pytest.mark.parametrize("missing", [pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded])
def test_no_driver_is_no_gpu(missing: type[pynvml.NVMLError], monkeypatch: pytest.MonkeyPatch) -> None:
    FakeNvml(error=missing).install(monkeypatch)
    assert nvml.gpus() == []
    assert nvml.driver_version() is None


def test_a_driver_or_a_gpu_that_does_not_answer_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    for driver in (
        FakeNvml(error=pynvml.NVMLError_LibRmVersionMismatch),
        FakeNvml(Board("GPU-a", error=pynvml.NVMLError_GpuIsLost)),
    ):
        driver.install(monkeypatch)
        with pytest.raises(UserError, match=r"The NVIDIA driver does not answer \(.*\): try nvidia-smi, then restart"):
            nvml.gpus()
        assert driver.started == 0
