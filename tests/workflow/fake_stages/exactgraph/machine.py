"""The pretended machine: ``machine.json`` in the working folder says its GPU, libraries and troubles."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from exactgraph.canonical import read_json

MACHINE = Path("machine.json")
RAN = Path("ran.txt")


def machine() -> dict[str, Any]:
    return read_json(MACHINE)


def note(stage: str, detail: str) -> None:
    """Write down that a stage ran, then meet whatever trouble the machine has ready for it."""
    name = f"{stage} {detail}".strip()
    with RAN.open("a") as file:
        file.write(f"{name}\n")
    match machine().get("trouble", {}).get(name):
        case "fail":
            sys.exit(f"{name} fails")
        case "hang":
            Path(f"hangs.{os.getpid()}").touch()
            time.sleep(600)
        case "kill-snakemake":
            # As an operating system short of memory would: the parent is gone before the stage has finished.
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(600)
