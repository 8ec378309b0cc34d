"""Several at once in one folder: two runs, two stores that are one, writers of one file, and receipts that are merged."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from evidence_world import World
from project import Project
from test_traps import alive, wait_for

from exactgraph.canonical import read_json
from exactgraph.receipts.statement import write
from exactgraph.receipts.status import status
from exactgraph.receipts.verify import verify

WRITER = """
import sys
from pathlib import Path
from exactgraph.canonical import write_json
for turn in range(300):
    write_json(Path(sys.argv[1]), {"writer": sys.argv[2], "turn": turn, "filling": sys.argv[2] * 20000})
"""


def test_writers_of_one_file_never_tear_it(tmp_path: Path) -> None:
    file = tmp_path / "one.json"
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(file), name]) for name in "ab"]
    seen: set[str] = set()
    reads = 0
    while any(writer.poll() is None for writer in writers):
        if file.exists():
            value: dict[str, Any] = read_json(file)
            assert value["filling"] == value["writer"] * 20000
            seen.add(value["writer"])
            reads += 1
    assert [writer.returncode for writer in writers] == [0, 0]
    assert seen == {"a", "b"}
    assert reads > 100
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.slow
def test_two_workflows_on_one_store(project: Project, tmp_path: Path) -> None:
    """Two clones whose ``artifacts`` are the same folder: the second waits its turn, then finds everything whole."""
    (tmp_path / "other").mkdir()
    other = Project(tmp_path / "other")
    store = tmp_path / "store"
    store.mkdir()
    for each in (project, other):
        (each.folder / "artifacts").symlink_to(store)
    project.machine(trouble={"freeze": "hang"})
    first = project.start()
    stage = int(wait_for(project, "hangs.*").suffix[1:])
    printed = other.run(code=1)
    assert f"Another run works in artifacts (process {first.pid})" in printed
    assert other.ran() == set()
    assert alive(stage)
    first.kill()
    first.wait()
    project.machine(trouble={})
    project.run()
    # What the first clone made has no record in the second, which therefore makes it anew; the first is content with that.
    other.run()
    for file in store.rglob("*.json"):
        read_json(file)
    assert len(list(store.glob("*/*/*/*/receipt.json"))) == 1
    project.run()
    assert project.ran() == set()


def test_receipts_of_several_machines_merge_by_copying(tmp_path: Path) -> None:
    worlds = []
    for name in ("first", "second"):
        world = World(tmp_path / name)
        world.device = world.device | {"id": f"nvidia-{name}-sm90-132sm-141g"}
        write(world.write())
        worlds.append(world)
    merged = tmp_path / "merged"
    for world in worlds:
        shutil.copytree(world.root, merged, dirs_exist_ok=True)
    receipts = sorted(merged.glob("*@*/*/*/*/receipt.json"))
    assert len(receipts) == 2
    assert all(verify(receipt).ok for receipt in receipts)
    rows = status(merged, {"models": [], "devices": {}, "candidates": []}, lambda stage, candidate: "")
    assert [row.device for row in rows] == ["nvidia-first-sm90-132sm-141g", "nvidia-second-sm90-132sm-141g"]
    # Copied again, nothing changes.
    before = {path: path.read_bytes() for path in merged.rglob("*.json")}
    shutil.copytree(worlds[0].root, merged, dirs_exist_ok=True)
    assert {path: path.read_bytes() for path in merged.rglob("*.json")} == before


def test_a_damaged_discovery_is_named(project: Project) -> None:
    project.run("--until", "probe")
    found = project.find("probe.json")
    found.write_bytes(found.read_bytes()[:20])
    printed = project.run(code=1)
    assert "artifacts/slots/local/probe.json is damaged" in printed
    assert "delete it and run again" in printed
    assert "Traceback" not in printed
    found.unlink()
    project.run()
