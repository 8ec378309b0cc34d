"""A class of the user's own, named ``module:Class``: where its code lies, what that code is, and the class itself.

The module is one that Python finds: installed, or in the folder that the run was started in. Its code is a part of what a
source is resolved to, so that results with other code never meet.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from exactgraph.canonical import file_digest
from exactgraph.refusal import UserError


def code_of(name: str) -> dict[str, str]:
    """``{file: SHA-256}`` of the module of the class ``name``, or of the whole package that it lies in. Runs none of it."""
    top = name.partition(":")[0].partition(".")[0]
    spec = _found(top)
    if spec is not None and spec.submodule_search_locations:
        folder = Path(next(iter(spec.submodule_search_locations)))
        return {file.relative_to(folder.parent).as_posix(): file_digest(file) for file in sorted(folder.rglob("*.py"))}
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        raise _unknown(name, f"Python finds no module {top!r}")
    return {Path(spec.origin).name: file_digest(Path(spec.origin))}


def check(name: str, code: dict[str, str]) -> None:
    """Refuse another code than ``code``, which the source was resolved with."""
    now = code_of(name)
    changed = sorted(file for file in code.keys() | now.keys() if code.get(file) != now.get(file))
    if changed:
        raise UserError(f"{changed[0]}, code of {name}, changed since the model was resolved: run again to resolve it anew.")


def load(name: str) -> Any:
    """The class, which has to be a ``PreTrainedModel`` that generates. Runs the module."""
    from transformers import GenerationMixin, PreTrainedModel

    module, _, attribute = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise _unknown(name, str(error)) from error
    if not isinstance(found, type) or not issubclass(found, PreTrainedModel) or not issubclass(found, GenerationMixin):
        raise UserError(f"{name} is no model that generates: it has to be a PreTrainedModel and a GenerationMixin.")
    return found


def _found(module: str) -> ModuleSpec | None:
    if module == "__main__":  # a script or a notebook, whatever else of that name lies on the path
        return None
    # Snakemake's own process does not look into the current folder by itself; its jobs do.
    here = PathFinder.find_spec(module, [os.getcwd(), *sys.path])
    return here or importlib.util.find_spec(module)  # an editable installation has a finder of its own


def _unknown(name: str, why: str) -> UserError:
    return UserError(
        f"The class {name} cannot be imported ({why}): install its module, put it into the folder that the run is started in, "
        f"or name its folder in PYTHONPATH."
    )
