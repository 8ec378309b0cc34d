"""Who may use a GPU, also among jobs of several users and several workflow folders.

Every job holds a lock on its GPU. While something is timed the lock is exclusive. Recording and comparing share it: other
work on the GPU changes no bits, and most of such a job's time is the host's. How many jobs a run may have at once on a GPU is
the workflow's resource ``gpu``; one, unless the person who runs it says otherwise.

The lock is ``flock`` on a file named after the GPU's UUID (each MIG slice has its own), in a folder that all users of the
machine share. The kernel drops it with the process, however that ends, so there is no stale lock to clear.
"""

from __future__ import annotations

import fcntl
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from exactgraph.environment import nvml
from exactgraph.environment.nvml import Gpu
from exactgraph.refusal import UserError

#: Set while a process holds a GPU, to its UUID: children then neither lock again nor choose anew.
HELD = "EXACTGRAPH_GPU_HELD"
#: Not under ``TMPDIR``: schedulers give each job its own.
LOCKS = Path("/tmp/exactgraph-locks")
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_ORDER = "CUDA_DEVICE_ORDER"
_PAUSE_SECONDS = 0.5
_log = logging.getLogger(__name__)


def lock_folder(folder: Path = LOCKS) -> Path:
    """The folder of the lock files, made on first use: open to every user of the machine."""
    try:
        folder.mkdir(mode=0o777, exist_ok=True)
        if folder.stat().st_uid == os.getuid():
            folder.chmod(0o1777)  # mkdir's mode is cut by the umask
    except OSError as error:
        raise UserError(f"The folder for GPU locks {folder} cannot be made: {error.strerror}.") from error
    return folder


class Hold:
    """A held GPU. ``handle`` is the descriptor of its lock, or None where there is nothing to lock or a parent holds it."""

    def __init__(self, uuid: str | None, handle: int | None) -> None:
        self.uuid = uuid
        self._handle = handle

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Have the GPU alone in the block; waits until the jobs that share it have ended or are waiting too."""
        if self._handle is None:
            yield
            return
        # The kernel gives the shared lock up before it waits for the exclusive one, so two that ask never wait for each other.
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _log.warning("Waiting for the other jobs on GPU %s, to have it alone.", self.uuid)
            fcntl.flock(self._handle, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._handle, fcntl.LOCK_SH)


@contextmanager
def hold_gpu(device_id: str, read: Callable[[], list[Gpu]] = nvml.gpus, locks: Path = LOCKS) -> Iterator[Hold]:
    """Hold a GPU with this device id, shared, while the block runs; a CPU needs no lock.

    Enter it before torch starts CUDA. A ``CUDA_VISIBLE_DEVICES`` that is set (a scheduler's) stays as it is, and its first GPU
    is the one held; otherwise a GPU with the id that nobody holds, else one that can be shared, and the variable names it
    while the block runs. Where all are held alone it waits, and logs by whom. ``read`` lists the machine's GPUs, ``locks`` is
    the folder of the lock files.
    """
    if device_id.startswith("cpu-"):
        yield Hold(None, None)
        return
    if HELD in os.environ:  # this process or the one that started it holds a GPU: the id is checked when torch opens it
        yield Hold(os.environ[HELD], None)
        return
    gpu, handle = _take(_eligible(device_id, read()), lock_folder(locks))
    settings = {HELD: gpu.uuid}
    if _VISIBLE in os.environ:
        # Schedulers count in PCI bus order, as NVML does; CUDA's own default puts what it takes for the fastest first.
        settings |= {} if _ORDER in os.environ else {_ORDER: "PCI_BUS_ID"}
    else:
        settings[_VISIBLE] = gpu.uuid
    os.environ.update(settings)
    try:
        yield Hold(gpu.uuid, handle)
    finally:
        for name in settings:
            os.environ.pop(name, None)
        os.close(handle)


def _eligible(device_id: str, found: Sequence[Gpu]) -> list[Gpu]:
    """The GPUs that this job may hold, in the order to try."""
    chosen = nvml.visible(found)
    if _VISIBLE in os.environ:
        chosen = chosen[:1]  # torch opens the first
    matching = [gpu for gpu in chosen if gpu.device.id == device_id]
    if matching:
        return matching
    where = f"{_VISIBLE}={os.environ[_VISIBLE]}" if _VISIBLE in os.environ else "this machine"
    seen = ", ".join(sorted({gpu.device.id for gpu in chosen})) or "no GPU"
    raise UserError(f"This job belongs on {device_id}, but {where} gives {seen}.")


def _take(gpus: Sequence[Gpu], folder: Path) -> tuple[Gpu, int]:
    """Lock a GPU, shared, and return it with the lock's file descriptor: a free one first, then one that others share."""
    first = os.getpid() % len(gpus)  # spreads jobs that share over the GPUs
    turns = [(gpu, fcntl.LOCK_EX) for gpu in gpus] + [(gpu, fcntl.LOCK_SH) for gpu in (*gpus[first:], *gpus[:first])]
    told = False
    while True:
        for gpu, kind in turns:
            handle = _open(folder / f"{gpu.uuid.replace('/', '_')}.lock")
            try:
                fcntl.flock(handle, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                if kind == fcntl.LOCK_SH and not told:
                    holder = os.pread(handle, 100, 0).decode(errors="replace").strip() or "unknown"
                    _log.warning("Waiting for GPU %s, held by process %s.", gpu.uuid, holder)
                os.close(handle)
                continue
            fcntl.flock(handle, fcntl.LOCK_SH)
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
            return gpu, handle
        told = True
        time.sleep(_PAUSE_SECONDS)


def _open(path: Path) -> int:
    """The lock file, open for reading and writing and closed on exec; made for every user where it is new.

    Linux may forbid ``O_CREAT`` on another user's file in a shared folder even where the file exists, so that comes second.
    """
    while True:
        try:
            return os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise UserError(f"The GPU's lock file {path} cannot be opened: {error.strerror}.") from error
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except FileExistsError:
            continue
        os.fchmod(handle, 0o666)  # open's mode is cut by the umask
        return handle
