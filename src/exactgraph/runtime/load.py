"""A model from its local folder, ready to generate."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def default_device() -> torch.device:
    """The first visible NVIDIA GPU, or the CPU where there is none."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def load_model(folder: Path, dtype: str, device: torch.device) -> Any:
    """The causal language model in ``folder`` in ``dtype`` (``bf16``, ``fp16``, ``fp32``) on ``device``, in eval mode.

    Only files of the folder are read: no hub, no remote code.
    """
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    if not sys.stderr.isatty():
        logging.disable_progress_bar()
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=DTYPES[dtype], local_files_only=True)
    return model.to(device).eval()


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer in ``folder``."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder, local_files_only=True)
