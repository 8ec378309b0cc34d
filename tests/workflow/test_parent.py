"""Stages end with the process that started them, where it asked for that."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from exactgraph.workflow.parent import PARENT

BEGIN = "import os, time; from exactgraph.workflow.parent import PARENT, die_with_parent"
STAGE = f"{BEGIN}; die_with_parent(); print('up', flush=True); time.sleep(60)"
CHILD = f"""
import subprocess, sys, os
from exactgraph.workflow.parent import child_environment
stage = subprocess.Popen([sys.executable, "-c", {STAGE!r}], env=child_environment(), stdout=subprocess.PIPE)
stage.stdout.readline()
print(stage.pid, flush=True)
stage.wait()
"""


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_stage_dies_with_a_killed_parent() -> None:
    parent = subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    stage = int(parent.stdout.readline())
    assert running(stage)
    parent.kill()
    parent.communicate()
    end = time.monotonic() + 10
    while running(stage) and time.monotonic() < end:
        time.sleep(0.02)
    assert not running(stage)


def test_a_stage_whose_parent_has_gone_already_ends_at_once() -> None:
    variables = {**os.environ, PARENT: str(2**22 + 1)}
    done = subprocess.run([sys.executable, "-c", STAGE], env=variables, timeout=30, check=False, stdout=subprocess.DEVNULL)
    assert done.returncode == -signal.SIGKILL


def test_a_stage_started_by_hand_is_left_alone() -> None:
    source = f"{BEGIN}; os.environ.pop(PARENT, None); die_with_parent(); print(1)"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"


def test_the_request_is_not_handed_on() -> None:
    source = f"{BEGIN}; die_with_parent(); print(PARENT in os.environ)"
    variables = {**os.environ, PARENT: str(os.getpid())}
    done = subprocess.run([sys.executable, "-c", source], env=variables, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
