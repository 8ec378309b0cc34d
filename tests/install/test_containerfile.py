"""The parts of the Containerfile; it is built only where there is an engine for that."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from locks import CLUSTER, CUDA, ROOT

FILE = ROOT / "Containerfile"


def instructions() -> list[tuple[str, str]]:
    """Each instruction's name and the rest of it, with continued lines joined."""
    text = "\n".join(line for line in FILE.read_text().splitlines() if not line.startswith("#"))
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in re.sub(r"\s*\\\n\s*", " ", text).splitlines() if line]


def all_of(name: str) -> list[str]:
    return [rest for instruction, rest in instructions() if instruction == name]


def the(name: str) -> str:
    (only,) = all_of(name)
    return only


def copied() -> list[str]:
    return [source for rest in all_of("COPY") for source in rest.split()[:-1]]


def test_its_base_is_exact_and_the_one_of_the_workflow() -> None:
    base = re.fullmatch(r"docker\.io/library/python:(3\.\d+)\.\d+-(slim-\w+)", the("FROM"))
    assert base, f"{the('FROM')} is no exact release of Python on a named Debian"
    image = re.search(
        r'^container: "docker://python:([\d.]+)-([\w-]+)"$', (ROOT / "workflow/rules/common.smk").read_text(), re.M
    )
    assert image
    assert base.groups() == image.groups()


def test_it_installs_the_lock_for_cuda_and_then_the_project() -> None:
    install, project = (run for run in all_of("RUN") if "pip install" in run)
    assert re.findall(r"--requirement (\S+)", install) == [CUDA.name, CLUSTER.name]
    assert "--no-deps" in project
    assert project.index("--editable .") > 0
    order = [rest for instruction, rest in instructions() if instruction in ("COPY", "RUN")]
    assert order.index(f"{CUDA.name} {CLUSTER.name} ./") < order.index(install) < order.index("src src") < order.index(project)


def test_what_it_copies_is_in_the_repository() -> None:
    assert not [source for source in copied() if not (ROOT / source).exists()]
    ignored = subprocess.run(["git", "check-ignore", *copied()], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ignored.stdout == ""


def test_what_it_copies_is_enough_to_plan_the_workflow(tmp_path: Path) -> None:
    for source in copied():
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, tmp_path / source)
        else:
            shutil.copy(ROOT / source, tmp_path)
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "src")}
    command = [sys.executable, "-m", "snakemake", *json.loads(the("CMD")), "--dry-run"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "probe" in done.stdout + done.stderr


def test_it_runs_as_a_user_who_is_not_root_and_can_write_where_it_works() -> None:
    user, folder = the("USER"), the("WORKDIR")
    assert user.isdigit()
    assert int(user) > 0
    assert instructions()[-3][0] == "USER", "something after it would run as that user"
    assert re.search(rf"useradd --create-home --uid {user} (\w+) && chown \1 {folder}$", all_of("RUN")[-1])


def test_its_entry_point_is_a_command_that_is_installed() -> None:
    (entry,) = json.loads(the("ENTRYPOINT"))
    assert f"{entry}==" in CUDA.read_text()


def test_it_fits_the_job_of_the_kubernetes_profile() -> None:
    pod = yaml.safe_load((ROOT / "profiles/kubernetes/job.yaml").read_text())["spec"]["template"]["spec"]
    assert [mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]] == [the("WORKDIR")]
    profile = yaml.safe_load((ROOT / "profiles/kubernetes/config.yaml").read_text())
    assert f"snakemake-executor-plugin-{profile['executor']}==" in CLUSTER.read_text()
    assert "kubernetes-client" in all_of("RUN")[0]


def test_it_holds_no_secret_and_no_address() -> None:
    assert {name for name, _ in instructions()} == {"FROM", "RUN", "WORKDIR", "COPY", "USER", "ENTRYPOINT", "CMD"}
    assert not re.search(r"://|token|password|secret|index|\.netrc|\.ssh", " ".join(rest for _, rest in instructions()), re.I)


def engine() -> str:
    """An engine that answers; the test is skipped where there is none."""
    for name in ("podman", "docker"):
        if shutil.which(name) and subprocess.run([name, "info"], capture_output=True, check=False).returncode == 0:
            return name
    pytest.skip("no podman or docker that answers on this machine, so the Containerfile was read and not built")


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_it_builds_and_answers() -> None:
    name = engine()
    subprocess.run([name, "build", "--tag", "exactgraph-test", "--file", FILE, ROOT], check=True)
    try:
        run = [name, "run", "--rm"]
        subprocess.run([*run, "exactgraph-test", "--cores", "1", "confirm", "--dry-run"], check=True)
        build = "import os, torch; print(os.getuid(), torch.version.cuda is not None)"
        asked = subprocess.run(
            [*run, "--entrypoint", "python", "exactgraph-test", "-c", build], capture_output=True, text=True, check=True
        )
        assert asked.stdout.split() == [the("USER"), "True"]
    finally:
        subprocess.run([name, "rmi", "exactgraph-test"], check=True)
