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
from exactgraph.sources import own_class

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def default_device() -> torch.device:
    """The first visible NVIDIA GPU, or the CPU where there is none."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def load_model(folder: Path, dtype: str, device: torch.device, remote_code: bool = False, own: str | None = None) -> Any:
    """The language model or speech model in ``folder`` on ``device``, in eval mode.

    ``dtype`` is ``bf16``, ``fp16`` or ``fp32``; ``own`` names the user's class (``module:Class``) that the model is of.
    Only files of the folder are read, never the hub. Code in it is run only with ``remote_code``.
    """
    from transformers.utils import logging

    if not sys.stderr.isatty():
        logging.disable_progress_bar()
    with _sentences(folder):
        kind: Any = own_class.load(own) if own else _kind(read_json(folder / "config.json"))
        code = {} if own else {"trust_remote_code": remote_code}
        loaded: Any = kind.from_pretrained(
            folder, dtype=DTYPES[dtype], local_files_only=True, output_loading_info=True, **code
        )
        model, report = loaded
        # transformers fills such parameters with random values and goes on.
        lacking = sorted(report["missing_keys"])
        if lacking:
            raise ValueError(f"its weights lack {len(lacking)} parameters, among them {lacking[0]}")
        return model.to(device).eval()


def _kind(config: dict[str, Any]) -> Any:
    """The automatic class for a ``config.json``."""
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoModelForSpeechSeq2Seq

    # Decoders alone are causal language models too, so the type of the configuration does not tell.
    if is_speech(config):
        return AutoModelForSpeechSeq2Seq
    return AutoModelForSeq2SeqLM if config.get("is_encoder_decoder") else AutoModelForCausalLM


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
