"""Digests of the code that a stage runs.

A stage's digest covers the files that it can import from this package, found by reading their syntax trees: nothing is
executed, so the main process stays light and free of torch. Snakemake keeps the digest as a parameter of the stage's rule,
so that an edit re-runs exactly the stages that can see it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from exactgraph.canonical import digest, file_digest, short
from exactgraph.refusal import UserError

PACKAGE = "exactgraph"
REGISTRY = f"{PACKAGE}.candidates.registry"
_HERE = Path(__file__).resolve().parent.parent


@cache
def stage_digest(stage: str, candidate: str | None = None) -> str:
    """16 hex digits of the code of ``stage``, with that of ``candidate`` for the stages that run one."""
    registry = _file_of(REGISTRY, _HERE)
    files = {
        path.relative_to(_HERE).as_posix(): registry_digest(path) if path == registry else file_digest(path)
        for path in stage_files(stage, candidate)
    }
    return short(files)


def registry_digest(file: Path) -> str:
    """Digest of the candidates' registry without its table of modules: a new row changes nothing for those that were there.

    The one row that a stage uses is covered by the module that it names.
    """
    source = file.read_text()
    lines = source.splitlines()
    node = _assignment("MODULES", source)
    if node is not None:
        del lines[node.lineno - 1 : node.end_lineno]
    return digest(lines)


def stage_files(stage: str, candidate: str | None = None, package: Path = _HERE) -> list[Path]:
    """The files of the package that ``stage`` can import or reads as data."""
    start = [f"{PACKAGE}.stages.{stage}"]
    if candidate is not None:
        modules = candidate_modules(package)
        if candidate not in modules:
            raise UserError(f"There is no candidate {candidate!r}: the registry knows {', '.join(sorted(modules))}.")
        start.append(modules[candidate])
    for module in start:
        if _file_of(module, package) is None:
            raise UserError(f"The package has no module {module}: it was installed incompletely.")
    return _closure(start, package)


def candidate_modules(package: Path = _HERE) -> dict[str, str]:
    """Every candidate's module by id, controls among them, read without importing anything."""
    return dict(_registry_literal("MODULES", package))


def control_ids(package: Path = _HERE) -> list[str]:
    """The ids of the controls."""
    return list(_registry_literal("CONTROLS", package))


def _registry_literal(name: str, package: Path) -> Any:
    file = _file_of(REGISTRY, package)
    node = _assignment(name, file.read_text()) if file else None
    if node is not None and node.value is not None:
        return ast.literal_eval(node.value)
    raise UserError(f"{REGISTRY} has no literal {name}: the package was installed incompletely.")


def _assignment(name: str, source: str) -> ast.Assign | ast.AnnAssign | None:
    """The statement at the top level of ``source`` that gives ``name`` its value."""
    for node in ast.parse(source).body:
        match node:
            case ast.Assign(targets=[ast.Name(id=found)]) | ast.AnnAssign(target=ast.Name(id=found)) if found == name:
                return node
    return None


def _closure(start: list[str], package: Path) -> list[Path]:
    waiting, seen, files = list(start), set(), set()
    while waiting:
        module = waiting.pop()
        file = _file_of(module, package)
        if module in seen or file is None:
            continue
        seen.add(module)
        files.add(file)
        # Importing a.b.c runs a/__init__.py and a/b/__init__.py too.
        parts = module.split(".")
        waiting += [".".join(parts[:end]) for end in range(1, len(parts))]
        names, data = _edges(module, file)
        waiting += names
        files |= set(data)
    return sorted(files)


def _file_of(module: str, package: Path) -> Path | None:
    head, *rest = module.split(".")
    if head != PACKAGE or not all(part.isidentifier() for part in rest):
        return None
    base = package.joinpath(*rest)
    candidates = (base / "__init__.py", base.with_name(f"{base.name}.py")) if rest else (base / "__init__.py",)
    return next((file for file in candidates if file.is_file()), None)


@cache
def _edges(module: str, file: Path) -> tuple[tuple[str, ...], tuple[Path, ...]]:
    """Modules that ``file`` imports or names in a string, and data files next to it that it names."""
    tree = ast.parse(file.read_bytes(), str(file))
    home = module if file.name == "__init__.py" else module.rpartition(".")[0]
    names: list[str] = []
    data: list[Path] = []
    for node in _executed(tree):
        match node:
            case ast.Import():
                names += [alias.name for alias in node.names]
            case ast.ImportFrom():
                base = _absolute(node, home)
                names += [base, *(f"{base}.{alias.name}" for alias in node.names)]
            case ast.Constant(value=str(text)) if 0 < len(text) < 200 and text.isprintable():
                # Registries import by name. The candidates' one is left out: its stages add the one module they run.
                if text.startswith(f"{PACKAGE}.") and module != REGISTRY:
                    names.append(text.partition(":")[0])
                elif "." in text and (named := file.parent / text).is_file() and named.suffix != ".py":
                    data.append(named.resolve())
    return tuple(names), tuple(data)


def _absolute(node: ast.ImportFrom, home: str) -> str:
    if not node.level:
        return node.module or ""
    parts = home.split(".")[: len(home.split(".")) - node.level + 1]
    return ".".join([*parts, *([node.module] if node.module else [])])


def _executed(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those under ``if TYPE_CHECKING:``, which never runs."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        match node:
            case ast.If(test=ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING")):
                waiting += node.orelse
            case _:
                waiting += ast.iter_child_nodes(node)
