"""The files of a pinned hub model, fetched so that a broken or killed download goes on where it stopped.

``huggingface_hub`` resumes within one call and then throws its partial file away; here the partial files are kept and handed
to its transfer again.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from exactgraph.refusal import UserError
from exactgraph.sources import hub
from exactgraph.sources.hub_errors import sentences


def fetch(facts: dict[str, Any], kept: Path, folder: Path) -> None:
    """Fill ``folder`` with the files of ``facts``.

    Whole and partial files gather in ``kept``; the caller removes it when the folder is in its place.
    """
    files: dict[str, dict[str, Any]] = facts["files"]
    kept.mkdir(parents=True, exist_ok=True)
    with sentences(facts["repository"], facts["revision"], hub.endpoint()):
        missing = {name: expected for name, expected in files.items() if not _complete(kept / name, expected)}
        _check_space(facts["repository"], missing, kept)
        for name, expected in missing.items():
            _one(facts, name, expected, kept)
        for name in files:
            _place(kept / name, folder / name)


def _one(facts: dict[str, Any], name: str, expected: dict[str, Any], kept: Path) -> None:
    partial = _partial(kept, name)
    cached = hub.cached_file(facts, name)
    if cached and _complete(cached, expected):
        shutil.copyfile(cached, partial)
    else:
        _transfer(facts, name, expected["size"], partial)
    if not _complete(partial, expected):
        partial.unlink()
        raise hub.corrupt(facts, name)
    partial.rename(kept / name)


def _place(source: Path, target: Path) -> None:
    try:
        # Two names until the whole model is in its place: whoever is killed before that has lost nothing.
        os.link(source, target)
    except OSError:  # a file system without hard links
        source.rename(target)


def _transfer(facts: dict[str, Any], name: str, size: int, partial: Path) -> None:
    if partial.exists() and partial.stat().st_size > size:
        partial.unlink()
    # Not in append mode: where a server ignores ranges, the library starts the file over.
    with open(partial, "r+b" if partial.exists() else "w+b") as file:
        offset = file.seek(0, os.SEEK_END)
        try:
            hub.transfer(facts, name, size, file, offset)
        except UserError as error:
            got = file.seek(0, os.SEEK_END)
            if not got:
                raise
            raise UserError(
                f"The download of {name} broke off after {got} of {size} bytes, which are kept: run again, and it goes on "
                f"from there. {error}"
            ) from error
        os.fsync(file.fileno())


def _partial(kept: Path, name: str) -> Path:
    return kept / f"{name}.partial"


def _complete(file: Path, expected: dict[str, Any]) -> bool:
    if not file.is_file() or file.stat().st_size != expected["size"]:
        return False
    with open(file, "rb") as opened:
        return hub.matches(opened, expected)


def _check_space(repository: str, missing: dict[str, dict[str, Any]], kept: Path) -> None:
    there = sum(_partial(kept, name).stat().st_size for name in missing if _partial(kept, name).exists())
    needed = sum(expected["size"] for expected in missing.values()) - there
    free = shutil.disk_usage(kept).free
    if needed > free:
        raise UserError(
            f"{repository} needs {needed} more bytes and the disk of {kept.parent} has {free} free: free some space, or put "
            f"artifacts/ on a larger disk, and run again."
        )
