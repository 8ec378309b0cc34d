"""The plain command runs what a change touches and nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from project import CANDIDATES, MODEL, ROOT, RUN_ALL, SLUG, Project

VALIDATIONS = {f"validate {candidate}" for candidate in CANDIDATES}
BUILDS = {f"build {candidate}" for candidate in CANDIDATES}
BASELINES = {"baseline 1", "baseline 2", "baseline 3"}
END = {"rank", "confirm", "receipt", "report"}
DISCOVERY = {"probe local", f"resolve {MODEL}"}
SAME_MODEL = {f"resolve {MODEL}", f"download {SLUG}"}


def slow(module: str, expected: set[str]) -> Any:
    return pytest.param(module, expected, marks=pytest.mark.slow)


def test_unchanged_runs_nothing(finished: Project) -> None:
    assert "Nothing to be done" in finished.run()
    assert finished.ran() == set()


def test_more_cores_are_for_fresh_processes_and_run_nothing_again(finished: Project) -> None:
    for cores, freeze, confirm in (("1", 1, 1), ("4", 3, 2)):
        finished.run("--cores", cores, "confirm")
        assert finished.ran() == set()
        finished.run("--cores", cores, "--forcerun", "freeze", "confirmation", "--", "confirm")
        said = {stage: next(finished.folder.glob(f"logs/**/{stage}.log")).read_text() for stage in ("freeze", "confirm")}
        assert said == {"freeze": f"{freeze} at a time\n", "confirm": f"{confirm} at a time\n"}


@pytest.mark.slow
def test_touched_sources_run_nothing(finished: Project) -> None:
    for file in finished.package.rglob("*.py"):
        file.touch()
    finished.run()
    assert finished.ran() == set()


@pytest.mark.slow
def test_first_run_ends_with_the_table(project: Project) -> None:
    printed = project.run()
    assert project.ran() == RUN_ALL
    assert "TABLE" in printed
    assert printed.startswith("exactgraph confirms") or "\nexactgraph confirms" in printed


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        ("candidates/step.py", {"build step", "validate step", *END}),
        ("protocol/compare.py", {"freeze", *VALIDATIONS, *END}),
        slow("stages/profile.py", {"profile", "receipt", "report"}),
        slow("candidates/base.py", {f"{s} {c}" for s in ("build", "validate") for c in ("C022", "step")} | END),
        slow("candidates/fused.py", set()),
        slow("protocol/traces.py", {*BASELINES, "freeze", *VALIDATIONS, *END}),
        slow("stages/probe.py", {"probe local"}),
        slow("stages/resolve.py", {f"resolve {MODEL}"}),
        slow("stages/download.py", {f"download {SLUG}"}),
        slow("stages/freeze.py", {"freeze", "receipt", "report"}),
        slow("stages/build.py", {*BUILDS, *VALIDATIONS, *END}),
        slow("stages/rank.py", {"rank", "receipt", "report"}),
        slow("stages/confirm.py", {"confirm", "receipt", "report"}),
        slow("stages/receipt.py", {"receipt", "report"}),
        ("stages/report.py", {"report"}),
        slow("stages/table.py", set()),
    ],
)
def test_edited_code(finished: Project, module: str, expected: set[str]) -> None:
    finished.edit(module)
    finished.run()
    assert finished.ran() == expected
    finished.run()
    assert finished.ran() == set()


@pytest.mark.slow
def test_an_edit_of_a_rejected_candidate_leaves_the_confirmation(project: Project) -> None:
    project.machine(rejected=["C022"])
    project.run()
    project.edit("candidates/module_graphs.py")
    project.run()
    assert project.ran() == {"build C022", "validate C022", "rank", "receipt", "report"}


def test_a_prompt_edit_is_another_protocol(finished: Project) -> None:
    old = finished.find("receipt.json")
    before = old.read_bytes()
    prompts = finished.package / "protocol" / "prompts.json"
    prompts.write_text(prompts.read_text().replace('"two"', '"twain"'))
    finished.run()
    assert finished.ran() == RUN_ALL - DISCOVERY - SAME_MODEL - {"environment"}
    assert old.read_bytes() == before
    assert len(list(finished.folder.glob("artifacts/*/*/*/*/receipt.json"))) == 2


def test_a_library_version_is_another_environment(finished: Project) -> None:
    finished.machine(torch="2.14.0")
    finished.run()
    assert finished.ran() == RUN_ALL - SAME_MODEL
    assert len(list(finished.folder.glob("artifacts/*/nvidia-fake-sm90/*/*/receipt.json"))) == 2


def test_a_swapped_device_and_back(finished: Project) -> None:
    finished.machine(gpu="nvidia-other-sm80")
    finished.run()
    assert finished.ran() == RUN_ALL - SAME_MODEL
    finished.machine(gpu="nvidia-fake-sm90")
    finished.run()
    assert finished.ran() == {"probe local"}


@pytest.mark.slow
def test_a_precision_is_another_protocol_and_back(finished: Project) -> None:
    finished.configure(precision="fp16")
    finished.run()
    assert finished.ran() == RUN_ALL - DISCOVERY - SAME_MODEL - {"environment"}
    finished.configure()
    finished.run()
    assert finished.ran() == set()


@pytest.mark.slow
def test_a_configured_candidate_less_and_more(finished: Project) -> None:
    finished.configure(candidates=["C022"])
    finished.run()
    assert finished.ran() == {"profile", *END}
    finished.configure(candidates=["C022", "fused"])
    finished.run()
    assert finished.ran() == {"profile", "build fused", "validate fused", *END}


@pytest.mark.slow
def test_the_most_promising_candidate_is_built_first(project: Project) -> None:
    project.configure(candidates=["C022", "step", "fused"])
    project.run()
    ran = project.ran_in_order()
    built = [name for name in ran if name.startswith("build ")]
    assert built[:3] == ["build fused", "build step", "build C022"]
    assert ran.index("profile") < ran.index(built[0])


@pytest.mark.slow
def test_builds_run_again_where_the_profile_skips_others_than_before(finished: Project) -> None:
    finished.machine(pointless=["C022"])
    finished.edit("stages/profile.py")
    finished.run()
    assert finished.ran() == {"profile", *BUILDS, *VALIDATIONS, *END}


@pytest.mark.slow
def test_a_changed_model_folder_is_another_commit(project: Project) -> None:
    model = project.folder / "my-model"
    model.mkdir()
    (model / "weights").write_text("1")
    project.configure(models=[f"path:{model}"])
    project.run()
    project.run()
    assert project.ran() == set()
    (model / "weights").write_text("2")
    project.run()
    assert len(project.ran()) == len(RUN_ALL) - 1
    assert "probe local" not in project.ran()
    assert len(list(project.folder.glob("artifacts/*/*/*/*/receipt.json"))) == 2


@pytest.mark.slow
def test_overrides_on_the_command_line_reach_the_protocol(project: Project) -> None:
    project.run("confirm", "--config", "precision=fp16")
    assert '"dtype":"fp16"' in project.find("protocol.json").read_text()


def test_a_dry_run_changes_nothing(finished: Project) -> None:
    finished.edit("stages/receipt.py")
    before = sorted(path for path in finished.folder.glob("artifacts/**/*"))
    holder = finished.folder / "artifacts" / ".lock"
    holder.unlink()
    finished.run("--dry-run", "confirm")
    assert finished.ran() == set()
    assert sorted(finished.folder.glob("artifacts/**/*")) == [path for path in before if path != holder]


@pytest.mark.slow
def test_a_machine_without_a_gpu_rehearses(project: Project) -> None:
    project.machine(gpu=None)
    project.configure(models=["random:large?seed=0"])
    assert "REHEARSAL" in project.run()
    assert project.ran() == RUN_ALL
    assert '"rehearsal":true' in project.find("protocol.json").read_text()


@pytest.mark.slow
def test_a_refused_slot_ends_with_its_sentence(project: Project) -> None:
    project.configure(devices={"old": {}, "local": {}})
    project.machine(refusals={"old": {"reason": "gpu-too-old", "sentence": "This GPU is too old."}})
    assert project.run().count("Slot old: This GPU is too old.") == 1
    assert project.ran() == RUN_ALL | {"probe old"}
    project.run()
    assert project.ran() == set()


@pytest.mark.slow
def test_a_precision_the_device_lacks_is_refused(project: Project) -> None:
    project.machine(capability="7.5")
    project.configure(precision="bf16")
    assert "Slot local: nvidia-fake-sm90 has compute capability 7.5" in project.run()
    assert project.ran() == {"probe local"}


@pytest.mark.slow
def test_a_failed_probe_stops_its_slot_only(project: Project) -> None:
    project.configure(devices={"broken": {}, "local": {}})
    project.machine(trouble={"probe broken": "fail"})
    printed = project.run(code=1)
    assert "probe broken fails" in printed
    assert project.ran() == RUN_ALL | {"probe broken"}


def test_planning_needs_no_torch() -> None:
    """The real package: what the main process imports stays light."""
    heavy = "{'torch', 'transformers', 'numpy', 'matplotlib'}"
    source = f"import exactgraph.workflow.planner, sys; print(*sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", source], text=True, capture_output=True, check=True, cwd=Path(ROOT))
    assert done.stdout.strip() == ""
