"""A model from its local folder, ready to generate."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from exactgraph.canonical import read_json
from exactgraph.protocol.tasks import is_speech
from exactgraph.refusal import UserError

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def default_device() -> torch.device:
    """The first visible NVIDIA GPU, or the CPU where there is none."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def load_model(folder: Path, dtype: str, device: torch.device, remote_code: bool = False) -> Any:
    """The causal language model, or speech model, in ``folder`` on ``device``, in eval mode.

    ``dtype`` is ``bf16``, ``fp16`` or ``fp32``.
    Only files of the folder are read, never the hub. Code in it is run only with ``remote_code``.
    """
    from transformers import AutoModelForCausalLM, AutoModelForSpeechSeq2Seq
    from transformers.utils import logging

    if not sys.stderr.isatty():
        logging.disable_progress_bar()
    with _sentences(folder):
        # Whisper's decoder alone is a causal language model too, so the type of the configuration does not tell.
        hears = is_speech(read_json(folder / "config.json"))
        kind: Any = AutoModelForSpeechSeq2Seq if hears else AutoModelForCausalLM
        loaded: Any = kind.from_pretrained(
            folder, dtype=DTYPES[dtype], local_files_only=True, trust_remote_code=remote_code, output_loading_info=True
        )
        model, report = loaded
        # transformers fills such parameters with random values and goes on.
        lacking = sorted(report["missing_keys"])
        if lacking:
            raise ValueError(f"its weights lack {len(lacking)} parameters, among them {lacking[0]}")
        return model.to(device).eval()


def load_tokenizer(folder: Path, remote_code: bool = False) -> Any:
    """The tokenizer in ``folder``."""
    from transformers import AutoTokenizer

    with _sentences(folder):
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=remote_code)


@contextmanager
def _sentences(folder: Path) -> Iterator[None]:
    """What transformers and torch make of a folder that they cannot load, in one line."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise out_of_memory(f"The model in {folder}") from error
    except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
        said = str(error).strip().partition("\n")[0]
        raise UserError(f"The model in {folder} cannot be loaded: {said.rstrip('.')}. Choose another model.") from error


def out_of_memory(what: str) -> UserError:
    """The sentence for a GPU that is too small or too full for ``what``."""
    free, total = (figure / (1 << 30) for figure in torch.cuda.mem_get_info())
    return UserError(
        f"{what} does not fit into the GPU's memory, of which {free:.1f} of {total:.1f} GiB are free: end what else works on "
        f"it (nvidia-smi lists it) and run again, or choose a smaller model."
    )
