"""Canonical JSON, content digests and whole-file writes.

Every file that exactgraph keeps as evidence goes through here. Canonical JSON is orjson's output with sorted keys and one
closing newline: the same value always gives the same bytes, so a digest of the bytes is a digest of the value.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import orjson

_CHUNK = 1 << 22
_UNFINISHED = ".part"


def canonical_bytes(value: Any) -> bytes:
    """The canonical JSON bytes of ``value`` (dicts with string keys, lists, strings, numbers, booleans, None)."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE)


def digest(value: Any) -> str:
    """SHA-256 of the canonical JSON of ``value``, as 64 hex digits."""
    return hashlib.sha256(canonical_bytes(value)).hexdigest()


def short(value: Any) -> str:
    """The first 16 hex digits of :func:`digest`: what path keys are made of."""
    return digest(value)[:16]


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes, as 64 hex digits."""
    sha = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            sha.update(chunk)
    return sha.hexdigest()


def read_json(path: Path) -> Any:
    """The value of a JSON file."""
    return orjson.loads(Path(path).read_bytes())


def write_json(path: Path, value: Any) -> None:
    """Write canonical JSON whole: a reader sees the old file or the new one, never a part."""
    with whole_file(path) as file:
        file.write(canonical_bytes(value))


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """A binary file that takes the name ``path`` when the block ends without an error, and leaves nothing otherwise."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=_UNFINISHED)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def remove_unfinished(root: Path) -> None:
    """Remove what killed processes left of files that they had not finished. Only for whoever alone writes below ``root``."""
    for left in root.rglob(f".*{_UNFINISHED}"):
        left.unlink(missing_ok=True)
