from __future__ import annotations

import pytest

from exactgraph.environment.device import cpu_device, cuda_device
from exactgraph.environment.precision import choose
from exactgraph.refusal import Refused, UserError

CPU = cpu_device("x86_64", "AMD EPYC")


@pytest.mark.parametrize(
    ("capability", "expected"),
    [((7, 5), "fp16"), ((8, 0), "bf16"), ((8, 9), "bf16"), ((9, 0), "bf16"), ((10, 0), "bf16"), ((12, 0), "bf16")],
)
def test_auto_on_a_gpu(capability: tuple[int, int], expected: str) -> None:
    assert choose(cuda_device("NVIDIA X", capability, 10, 1)) == expected


def test_auto_on_a_cpu() -> None:
    assert choose(CPU) == "fp32"
    assert choose(CPU, "bf16") == "bf16"


@pytest.mark.parametrize("wanted", ["auto", "fp32"])
@pytest.mark.parametrize("capability", [(5, 2), (6, 1), (7, 0), (7, 2)])
def test_too_old_whatever_is_asked(capability: tuple[int, int], wanted: str) -> None:
    with pytest.raises(Refused) as caught:
        choose(cuda_device("Tesla V100", capability, 80, 1), wanted)
    assert caught.value.refusal.reason == "gpu-too-old"
    assert f"{capability[0]}.{capability[1]}" in caught.value.refusal.sentence


def test_an_explicit_precision_overrides_auto() -> None:
    assert choose(cuda_device("NVIDIA H200", (9, 0), 132, 1), "fp16") == "fp16"
    assert choose(cuda_device("Tesla T4", (7, 5), 40, 1), "fp32") == "fp32"
    with pytest.raises(Refused, match=r"from 8\.0 on"):
        choose(cuda_device("Tesla T4", (7, 5), 40, 1), "bf16")
    with pytest.raises(UserError, match="fp8"):
        choose(CPU, "fp8")
