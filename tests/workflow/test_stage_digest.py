"""Which files a stage's digest covers."""

from __future__ import annotations

from pathlib import Path

import pytest

from exactgraph.refusal import UserError
from exactgraph.workflow import stage_digest as digests

STAGES = (
    "probe",
    "resolve",
    "download",
    "environment",
    "protocol",
    "baseline",
    "freeze",
    "rank",
    "confirm",
    "receipt",
    "report",
)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package whose stage imports in every way there is."""
    files = {
        "__init__.py": "",
        "plain.py": "",
        "room/__init__.py": "from . import beside",
        "room/beside.py": "",
        "room/inside.py": "from ..plain import x\nfrom . import lazily_loaded",
        "room/lazily_loaded.py": "",
        "room/typed_only.py": "",
        "room/named.py": "",
        "room/table.json": "{}",
        "unused.py": "",
        "candidates/__init__.py": "",
        "candidates/registry.py": (
            "CONTROLS = ('a',)\nMODULES: dict[str, str] = {'a': 'exactgraph.candidates.a', 'b': 'exactgraph.candidates.b'}"
        ),
        "candidates/a.py": "",
        "candidates/b.py": "import exactgraph.plain",
        "stages/__init__.py": "",
        "stages/one.py": (
            "import json\nimport torch.nn\nfrom typing import TYPE_CHECKING\n"
            "if TYPE_CHECKING:\n    from exactgraph.room.typed_only import y\n"
            "from exactgraph.candidates import registry\n"
            "def run():\n    import exactgraph.room.inside\n    find('exactgraph.room.named:thing')\n"
        ),
        "stages/two.py": "import exactgraph.room.reader",
        "room/reader.py": "TABLE = 'table.json'",
        "stages/raises.py": "raise SystemExit('executed')",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return tmp_path


def names(package: Path, stage: str, candidate: str | None = None) -> set[str]:
    return {path.relative_to(package).as_posix() for path in digests.stage_files(stage, candidate, package)}


def test_the_closure_of_imports(package: Path) -> None:
    assert names(package, "one") == {
        *("__init__.py", "plain.py", "stages/__init__.py", "stages/one.py"),
        *("room/__init__.py", "room/beside.py", "room/inside.py", "room/lazily_loaded.py", "room/named.py"),
        *("candidates/__init__.py", "candidates/registry.py"),
    }


def test_named_data_is_covered(package: Path) -> None:
    assert "room/table.json" in names(package, "two")
    assert "room/table.json" not in names(package, "one")


def test_a_candidate_adds_its_own_module_only(package: Path) -> None:
    assert names(package, "one", "a") - names(package, "one") == {"candidates/a.py"}
    assert names(package, "two", "b") - names(package, "two") == {"candidates/__init__.py", "candidates/b.py", "plain.py"}


def test_nothing_is_executed(package: Path) -> None:
    assert "stages/raises.py" in names(package, "raises")


def test_what_is_not_there_is_refused(package: Path) -> None:
    with pytest.raises(UserError, match=r"no module exactgraph\.stages\.three"):
        digests.stage_files("three", None, package)
    with pytest.raises(UserError, match="no candidate 'c'"):
        digests.stage_files("one", "c", package)


def real(stage: str, candidate: str | None = None) -> set[str]:
    package = Path(digests.__file__).parents[1]
    return names(package, stage, candidate)


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_of_the_package_has_a_digest(stage: str) -> None:
    assert len(digests.stage_digest(stage)) == 16
    assert f"stages/{stage}.py" in real(stage)


def test_an_edit_of_one_candidate_is_no_edit_of_another() -> None:
    assert "candidates/step.py" in real("build", "step")
    assert "candidates/step.py" not in real("build", "C022")
    for stage in STAGES:
        assert not {"candidates/step.py", "candidates/module_graphs.py"} & real(stage), stage


def test_an_edit_of_the_comparison_builds_nothing_and_records_no_baseline() -> None:
    compare = "protocol/compare.py"
    assert compare in real("freeze")
    assert compare in real("validate", "step")
    assert compare in real("confirm")
    assert compare not in real("build", "step")
    assert compare not in real("baseline")


def test_an_edit_of_a_candidates_machinery_records_no_baseline() -> None:
    assert not {name for name in real("baseline") if name.startswith(("capture/", "candidates/"))}


def test_a_new_row_in_the_registry_is_no_edit_of_the_others(tmp_path: Path) -> None:
    registry, longer, other = (tmp_path / name for name in ("registry.py", "longer.py", "other.py"))
    registry.write_text("CONTROLS = ('a',)\nMODULES: dict[str, str] = {\n    'a': 'exactgraph.a',\n}\nx = 1\n")
    longer.write_text(
        "CONTROLS = ('a',)\nMODULES: dict[str, str] = {\n    'a': 'exactgraph.a',\n    'b': 'exactgraph.b',\n}\nx = 1\n"
    )
    other.write_text("CONTROLS = ('a',)\nMODULES: dict[str, str] = {\n    'a': 'exactgraph.a',\n}\nx = 2\n")
    assert digests.registry_digest(registry) == digests.registry_digest(longer)
    assert digests.registry_digest(registry) != digests.registry_digest(other)
