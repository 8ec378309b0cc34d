"""Source specs of the pretended package."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from exactgraph.refusal import UserError


@dataclass(frozen=True)
class Source:
    folder: Path | None


def parse(spec: str) -> Source:
    scheme, _, rest = spec.partition(":")
    if scheme not in ("pypi", "path", "random"):
        raise UserError(f"Unknown model source {spec!r}.")
    return Source(Path(rest) if scheme == "path" else None)


def hears(spec: str) -> bool | None:
    return None


def allow_code(spec: str) -> str:
    return f"{spec}?remote_code=true"


def class_of(spec: str) -> str | None:
    return None


def of_class(spec: str, own: str) -> str:
    return f"{spec}?class={own}"


def slug(spec: str) -> str:
    parse(spec)
    return re.sub("[^a-z0-9.]+", "-", spec.lower()).strip("-")
