"""One run at a time in the artifacts folder, and nothing half-written or unrecorded in it.

Snakemake 9.27.1 leaves three gaps below a checkpoint. Its lock covers only files known before the first job. An output whose
job was killed is used as if it were whole. And one without a metadata record (its Snakemake had died before it was
finished) is never renewed when code changes. So the first input function of a real run takes a lock of our own, and
outputs are looked at once, before the jobs that make or use them exist. The persistence calls below are Snakemake's
private layout; the version is pinned and tests/workflow tries each case.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

from exactgraph.canonical import remove_unfinished
from exactgraph.refusal import UserError


class Guard:
    """Holds the folder ``root`` for one Snakemake ``workflow`` until the process ends."""

    def __init__(self, workflow: Any, root: Path) -> None:
        self._workflow = workflow
        self._root = root
        self._lock: IO[str] | None = None
        self._seen: set[str] = set()

    def enter(self) -> bool:
        """Take the lock where this is a run that writes; True only the first time.

        Dry runs and questions such as ``--summary`` write nothing, and a job's own process works for the one that holds it.
        """
        workflow = self._workflow
        if self._lock is not None or workflow.executor_plugin is None or workflow.dryrun or not workflow.is_main_process:
            return False
        self._lock = self._take()
        # With our lock in hand, any lock of Snakemake's was left by a run that was killed.
        for stale in (Path(workflow.persistence.path) / "locks").glob("*.lock"):
            stale.unlink(missing_ok=True)
        remove_unfinished(self._root)
        return True

    def sweep(self, outputs: Iterable[str | Path]) -> None:
        """Remove those ``outputs`` that were left half-written or have no record, each looked at once a run.

        Once, because later a running job's output is incomplete and has no record by right. Does nothing without the lock,
        and nothing under ``--touch``, which is how a person vouches for such files.
        """
        fresh = [path for path in map(str, outputs) if path not in self._seen]
        if self._lock is None or self._workflow.touch:
            return
        self._seen.update(fresh)
        persistence = self._workflow.persistence
        incomplete = persistence._filter_incomplete_keys(fresh)
        for path in fresh:
            file = self._iofile(path)
            if path not in incomplete and (not os.path.lexists(path) or persistence.metadata(file) is not None):
                continue
            _remove(Path(path))
            persistence.cleanup_metadata(file)

    def _take(self) -> IO[str]:
        self._root.mkdir(parents=True, exist_ok=True)
        lock = open(self._root / ".lock", "a+")  # noqa: SIM115  held until the process ends
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            holder = lock.read().strip() or "unknown"
            raise UserError(
                f"Another run works in {self._root} (process {holder}). Wait until it has ended, or end it, then start again."
            ) from None
        lock.seek(0)
        lock.truncate()
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        return lock

    @staticmethod
    def _iofile(path: str) -> Any:
        from snakemake.io import IOFile

        return IOFile(path)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
