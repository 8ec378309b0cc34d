from __future__ import annotations

from pathlib import Path

import pytest

from exactgraph.environment import nvml
from exactgraph.environment.device import cpu_device, cpu_model, cuda_device
from exactgraph.environment.nvml import Gpu, visible

MIB = 1 << 20


@pytest.mark.parametrize(
    ("name", "capability", "sm_count", "mib", "expected"),
    [
        ("NVIDIA H200", (9, 0), 132, 143771, "nvidia-h200-sm90-132sm-141g"),
        ("NVIDIA H100 80GB HBM3", (9, 0), 132, 81559, "nvidia-h100-80gb-hbm3-sm90-132sm-80g"),
        ("NVIDIA A100-SXM4-40GB", (8, 0), 108, 40960, "nvidia-a100-sxm4-40gb-sm80-108sm-40g"),
        ("NVIDIA GeForce RTX 4090", (8, 9), 128, 24564, "nvidia-geforce-rtx-4090-sm89-128sm-24g"),
        ("Tesla T4", (7, 5), 40, 15360, "tesla-t4-sm75-40sm-15g"),
        ("NVIDIA B200", (10, 0), 148, 183359, "nvidia-b200-sm100-148sm-180g"),
        ("NVIDIA H200 MIG 1g.18gb", (9, 0), 16, 16384, "nvidia-h200-sm90-16sm-16g-mig-1g-18gb"),
    ],
)
def test_id_says_what_the_gpu_is(name: str, capability: tuple[int, int], sm_count: int, mib: int, expected: str) -> None:
    device = cuda_device(name, capability, sm_count, mib * MIB)
    assert device.id == expected
    assert device.capability == f"{capability[0]}.{capability[1]}"


def test_a_slice_keeps_its_profile_apart_from_its_name() -> None:
    device = cuda_device("NVIDIA H200 MIG 1g.18gb", (9, 0), 16, 16384 * MIB)
    assert (device.name, device.mig) == ("NVIDIA H200", "1g.18gb")
    assert cuda_device("NVIDIA H200", (9, 0), 132, 1).mig is None


def test_cpu_id_names_the_architecture_only() -> None:
    assert cpu_device("x86_64", "AMD EPYC").id == cpu_device("x86_64", "Intel Xeon").id == "cpu-x86_64"
    assert cpu_device("aarch64", "Neoverse").id == "cpu-aarch64"


def test_cpu_model_tells_apart_models_of_one_name(tmp_path: Path) -> None:
    text = "cpu family\t: 25\nmodel\t\t: {}\nmodel name\t: AMD EPYC\nstepping\t: 1\n\nprocessor\t: 1\nmodel name\t: other\n"
    (tmp_path / "a").write_text(text.format(17))
    (tmp_path / "b").write_text(text.format(1))
    assert cpu_model(tmp_path / "a") == "AMD EPYC (25/17/1)"
    assert cpu_model(tmp_path / "a") != cpu_model(tmp_path / "b")
    (tmp_path / "arm").write_text("processor : 0\nCPU implementer : 0x41\nCPU part : 0xd40\nCPU variant : 0x1\n")
    assert cpu_model(tmp_path / "arm") == "0x41 0xd40 0x1"


def machine() -> list[Gpu]:
    """GPU 0 whole, GPU 1 cut in two, GPU 2 whole."""
    whole = cuda_device("NVIDIA H200", (9, 0), 132, 143771 * MIB)
    part = cuda_device("NVIDIA H200 MIG 3g.71gb", (9, 0), 60, 70000 * MIB)
    return [
        Gpu(whole, "GPU-aa11", 0, "GPU-aa11"),
        Gpu(part, "MIG-bb01", 1, "GPU-bb00"),
        Gpu(part, "MIG-bb02", 1, "GPU-bb00"),
        Gpu(whole, "GPU-cc33", 2, "GPU-cc33"),
    ]


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        (None, ["GPU-aa11", "MIG-bb01", "MIG-bb02", "GPU-cc33"]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("2,0", ["GPU-cc33", "GPU-aa11"]),
        ("1", ["MIG-bb01"]),
        ("MIG-bb02", ["MIG-bb02"]),
        ("GPU-cc", ["GPU-cc33"]),
        ("0,9,2", ["GPU-aa11"]),
        (" 2 , 0 ", ["GPU-cc33", "GPU-aa11"]),
    ],
)
def test_visible_reads_the_variable_as_cuda_does(setting: str | None, expected: list[str]) -> None:
    variables = {} if setting is None else {"CUDA_VISIBLE_DEVICES": setting}
    assert [gpu.uuid for gpu in visible(machine(), variables)] == expected


@pytest.mark.gpu
def test_driver_and_torch_give_the_same_id() -> None:
    from exactgraph.environment.probe import this_device

    device, uuid = this_device()
    first = visible(nvml.gpus())[0]
    assert (device, uuid) == (first.device, first.uuid)
