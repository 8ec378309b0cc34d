"""Environment variables that change bits: one list, read by the environment key and by the cheap signature.

The thread counts (``OMP_NUM_THREADS`` and its kin) are left out on purpose: Snakemake sets them in jobs, and
:mod:`exactgraph.environment.threads` overrules them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

_NAMES = frozenset(
    {
        "ATEN_CPU_CAPABILITY",
        "CUDA_FORCE_PTX_JIT",
        "DISABLE_ADDMM_CUDA_LT",
        "FLASH_ATTENTION_DETERMINISTIC",
        "MKL_CBWR",
        "MKL_DEBUG_CPU_TYPE",
        "MKL_DISABLE_FAST_MM",
        "MKL_ENABLE_INSTRUCTIONS",
        "NVIDIA_TF32_OVERRIDE",
        "OPENBLAS_CORETYPE",
        "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
        "TORCH_LINEAR_FLATTEN_3D",
        "TRANSFORMERS_DISABLE_DEEPGEMM_LINEAR",
        "TRANSFORMERS_SDPA_FORCE_GQA",
        "TRITON_DEFAULT_FP_FUSION",
        "TRITON_F32_DEFAULT",
        "USE_HUB_KERNELS",
    }
)
_PREFIXES = (
    "CUBLASLT_",
    "CUBLAS_",
    "CUDNN_",
    "DNNL_",
    "ONEDNN_",
    "TORCHDYNAMO_",
    "TORCHINDUCTOR_",
    "TORCH_BLAS_PREFER_",
    "TORCH_CUDNN_",
    "TORCH_LINALG_PREFER_",
    "TORCH_MKLDNN_",
)
# Variables under those prefixes that only make a library talk, or say where and by how many workers it keeps its files.
_HARMLESS = ("LOG", "VERBOSE", "DEBUG", "CACHE_DIR", "THREADS", "WORKER")


def bit_changing(variables: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables that are set and may change bits, by name."""
    return {
        name: value
        for name, value in sorted(variables.items())
        if name in _NAMES or (name.startswith(_PREFIXES) and not any(word in name for word in _HARMLESS))
    }
