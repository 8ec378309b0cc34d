"""What a person may get wrong in config.yaml, in the prompts and on the command line: a sentence with its place."""

from __future__ import annotations

import pytest
from project import RUN_ALL, Project

from exactgraph.canonical import read_json, write_json


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("models:\n  - pypi:tiny==1\n candidates: [C022]\n", "config.yaml, line 3, column 2: "),
        ("models: [pypi:tiny==1\nprecision: auto\n", "config.yaml, line 2, column 10: "),
        ("models:\n\t- pypi:tiny==1\n", "config.yaml, line 2, column 1: "),
        ("- models\n", "keys at top level"),
        ("models:\n  pypi: tiny==1\n", "Configuration, models: "),
        ("protocol: 3\n", "Configuration, protocol: "),
        ("rehearsal: {prompts: 0}\n", "Configuration, rehearsal.prompts: "),
        ("models: [pypi:tiny==1]\ncandidates: [stpe]\n", "Configuration, candidates[0]: 'stpe' is not a candidate. Known "),
    ],
)
def test_a_configuration_that_cannot_be_meant(project: Project, text: str, says: str) -> None:
    (project.folder / "config.yaml").write_text(text)
    printed = project.run("--dry-run", "confirm", code=1)
    assert says in printed
    assert "Traceback" not in printed


def test_a_configuration_that_is_not_text(project: Project) -> None:
    (project.folder / "config.yaml").write_bytes(b"models: [\xff]\n")
    printed = project.run("--dry-run", "confirm", code=1)
    assert "config.yaml is no YAML text: " in printed
    assert "Traceback" not in printed


def test_no_configuration(project: Project) -> None:
    (project.folder / "config.yaml").unlink()
    assert "config.yaml but it is not present" in project.run("--dry-run", "confirm", code=1)


def test_no_prompts(project: Project) -> None:
    prompts = project.package / "protocol" / "prompts.json"
    write_json(prompts, read_json(prompts) | {"heldout": []})
    printed = project.run("--dry-run", "confirm", code=1)
    assert "The prompt set 'heldout' is empty, so nothing would be compared" in printed
    assert "Traceback" not in printed


@pytest.mark.parametrize("option", ["--workflow-profile", "--profile"])
def test_a_profile_that_does_not_exist(project: Project, option: str) -> None:
    printed = project.run(option, "profiles/nowhere", "confirm", code=1)
    assert "does not exist" in printed or "no profile.yaml" in printed
    assert "Traceback" not in printed
    assert project.ran() == set()


def test_a_profile_may_be_replaced_by_what_it_says(project: Project) -> None:
    project.run("--workflow-profile", "none", "--resources", "gpu=1", "--", "confirm")
    assert project.ran() == RUN_ALL


def test_gpus_that_a_variable_hides_are_named(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rehearsal says that it is none of the machine's fault. The pretended machine hides what this variable names."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    printed = project.run("--until", "probe")
    assert "REHEARSAL: CUDA_VISIBLE_DEVICES=7 names none of this machine's GPUs" in printed
