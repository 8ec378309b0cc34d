"""Reading CTranslate2's ``model.bin``, without CTranslate2.

The layout is that of ``ModelSpec._serialize`` in CTranslate2's ``python/ctranslate2/specs/model_spec.py`` (binary version 6),
all little-endian: ``uint32`` version; name of the spec; ``uint32`` revision of the spec; ``uint32`` number of variables, each
as name, ``uint8`` rank, ``uint32`` a dimension, ``uint8`` dtype, ``uint32`` number of bytes, and the bytes in row-major order;
``uint32`` number of aliases, each as alias and name of a variable. A name is ``uint16`` length, its bytes and a zero byte,
which the length counts.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from exactgraph.refusal import UserError

_VERSION = 6
_BFLOAT16 = 5
# By the format's dtype numbers. numpy has no bfloat16 (5).
_DTYPES = {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16}

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Stored:
    """``spec`` and its ``revision``; ``variables`` by name, in their stored dtypes and shapes; ``aliases`` of variables."""

    spec: str
    revision: int
    variables: dict[str, Array]
    aliases: dict[str, str]


class _Reader:
    """Values one after the other from a file's bytes."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._bytes = memoryview(file.read_bytes())
        self._at = 0

    def number(self, kind: str) -> int:
        """One unsigned number: ``B``, ``H`` or ``I`` of :mod:`struct`."""
        value: int = struct.unpack("<" + kind, self.bytes(struct.calcsize(kind)))[0]
        return value

    def bytes(self, count: int) -> memoryview:
        part = self._bytes[self._at : self._at + count]
        if len(part) < count:
            raise UserError(f"{self._file} ends in the middle of a value: it is no whole CTranslate2 model.")
        self._at += count
        return part

    def name(self) -> str:
        text = bytes(self.bytes(self.number("H")))
        if not text.endswith(b"\0"):
            raise UserError(f"{self._file} has a name without an end: it is no CTranslate2 model.")
        return text[:-1].decode()

    def left(self) -> int:
        return len(self._bytes) - self._at


def read(file: Path) -> Stored:
    """Everything in ``file``. Raises ``UserError`` for another version, a dtype that is not known and for damage."""
    reader = _Reader(file)
    version = reader.number("I")
    if version != _VERSION:
        raise UserError(f"{file} has the CTranslate2 binary version {version}; only version {_VERSION} is read.")
    spec, revision = reader.name(), reader.number("I")
    variables = dict(_variable(file, reader) for _ in range(reader.number("I")))
    aliases = {reader.name(): reader.name() for _ in range(reader.number("I"))}
    if reader.left():
        raise UserError(f"{file} has {reader.left()} bytes after its end: it is no CTranslate2 model of version {_VERSION}.")
    return Stored(spec, revision, variables, aliases)


def _variable(file: Path, reader: _Reader) -> tuple[str, Array]:
    name = reader.name()
    shape = tuple(reader.number("I") for _ in range(reader.number("B")))
    kind, size = reader.number("B"), reader.number("I")
    if kind not in _DTYPES:
        what = "bfloat16" if kind == _BFLOAT16 else f"the dtype number {kind}"
        raise UserError(f"{name} in {file} is stored as {what}, which is not read.")
    dtype = np.dtype(_DTYPES[kind]).newbyteorder("<")
    if size != math.prod(shape) * dtype.itemsize:
        raise UserError(f"{name} in {file} has {size} bytes, which is not what its shape {shape} takes.")
    return name, np.frombuffer(reader.bytes(size), dtype).reshape(shape)
