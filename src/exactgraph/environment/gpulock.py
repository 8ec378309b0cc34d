"""Who may use a GPU, also among jobs of several users and several workflow folders.

Every job holds a lock on its GPU. While something is timed the lock is exclusive. Recording and comparing share it: other
work on the GPU changes no bits, and most of such a job's time is the host's. How many jobs a run may have at once on a GPU is
the workflow's resource ``gpu``; one, unless the person who runs it says otherwise.

The lock is ``flock`` on a file named after the GPU's UUID (each MIG slice has its own), in a folder that all users of the
machine share. The kernel drops it with the process, however that ends, so there is no stale lock to clear.

A second file beside it is a turnstile. Who is to have the GPU alone closes it first and opens it when the GPU is his, and no
new job comes onto the GPU through a closed one: so those that share it become fewer, however many jobs there are.
"""

from __future__ import annotations

import fcntl
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

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


class Lock:
    """The open lock files of one GPU: ``place`` is who is on it, ``turnstile`` who may come next. ``file`` names the first."""

    def __init__(self, file: Path) -> None:
        self._place = _open(file)
        try:
            self._turnstile = _open(file.with_suffix(".turn"))
        except UserError:
            os.close(self._place)
            raise

    def enter(self, kind: int) -> bool:
        """Come onto the GPU, to share it: with ``LOCK_EX`` only where nobody is there, with ``LOCK_SH`` also beside others."""
        try:
            fcntl.flock(self._turnstile, fcntl.LOCK_SH | fcntl.LOCK_NB)
            try:
                fcntl.flock(self._place, kind | fcntl.LOCK_NB)
                fcntl.flock(self._place, fcntl.LOCK_SH)
            finally:
                fcntl.flock(self._turnstile, fcntl.LOCK_UN)
        except BlockingIOError:
            return False
        os.ftruncate(self._place, 0)
        os.pwrite(self._place, f"{os.getpid()}\n".encode(), 0)
        return True

    def clear(self, waiting: Callable[[], None]) -> None:
        """Have the GPU alone. Calls ``waiting`` once where others have to leave it first."""
        try:
            fcntl.flock(self._place, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            waiting()
        # Given up before it is waited for, so two that ask never wait for each other.
        fcntl.flock(self._place, fcntl.LOCK_UN)
        fcntl.flock(self._turnstile, fcntl.LOCK_EX)
        try:
            fcntl.flock(self._place, fcntl.LOCK_EX)
        finally:
            fcntl.flock(self._turnstile, fcntl.LOCK_UN)

    def share(self) -> None:
        """Let others onto the GPU again. One that waits to have it alone may come first."""
        fcntl.flock(self._place, fcntl.LOCK_SH)

    def holder(self) -> str:
        """The id of the process that came last, as far as it is known."""
        return os.pread(self._place, 100, 0).decode(errors="replace").strip() or "unknown"

    def close(self) -> None:
        os.close(self._turnstile)
        os.close(self._place)


class Hold:
    """A held GPU. ``lock`` is None where there is nothing to lock or a parent holds it."""

    def __init__(self, uuid: str | None, lock: Lock | None) -> None:
        self.uuid = uuid
        self._lock = lock

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Have the GPU alone in the block; waits until the jobs that share it have ended or are waiting too."""
        if self._lock is None:
            yield
            return
        self._lock.clear(lambda: _log.warning("Waiting for the other jobs on GPU %s, to have it alone.", self.uuid))
        try:
            yield
        finally:
            self._lock.share()


@contextmanager
def hold_gpu(
    device_id: str, read: Callable[[], list[Gpu]] = nvml.gpus, locks: Path = LOCKS, pins: Sequence[str] | None = None
) -> Iterator[Hold]:
    """Hold a GPU with this device id, shared, while the block runs; a CPU needs no lock.

    Enter it before torch starts CUDA. It holds a GPU with the id that nobody holds, else one that can be shared, out of those
    that ``CUDA_VISIBLE_DEVICES`` leaves where it is set, and that one of ``pins`` (in the words of that variable) names where
    they are given. The variable names the GPU while the block runs; a scheduler's choice of a single one stays as it is. Where
    all are held alone it waits, and logs by whom. ``read`` lists the machine's GPUs, ``locks`` is the lock files' folder.
    """
    if device_id.startswith("cpu-"):
        yield Hold(None, None)
        return
    if HELD in os.environ:  # this process or the one that started it holds a GPU: the id is checked when torch opens it
        yield Hold(os.environ[HELD], None)
        return
    found = read()
    gpu, lock = _take(_eligible(device_id, found, pins), lock_folder(locks))
    settings = {HELD: gpu.uuid}
    if _VISIBLE in os.environ and nvml.visible(found) == [gpu]:
        # Schedulers count in PCI bus order, as NVML does; CUDA's own default puts what it takes for the fastest first.
        settings |= {} if _ORDER in os.environ else {_ORDER: "PCI_BUS_ID"}
    else:
        settings[_VISIBLE] = gpu.uuid
    try:
        with patch.dict(os.environ, settings):
            yield Hold(gpu.uuid, lock)
    finally:
        lock.close()


@contextmanager
def only(pins: Sequence[str] | None, read: Callable[[], list[Gpu]] = nvml.gpus) -> Iterator[None]:
    """Have ``CUDA_VISIBLE_DEVICES`` name the GPUs of ``pins`` alone in the block, as :func:`hold_gpu` would choose from.

    Enter it before torch starts CUDA. On a machine without a GPU, or without pins, it changes nothing.
    """
    found = read()
    chosen = _pinned(found, pins)
    if not chosen and nvml.visible(found):
        raise UserError(f"{_choice(pins)} names no GPU of this machine: nvidia-smi lists them by number and UUID.")
    if pins is None or not chosen:
        yield
        return
    with patch.dict(os.environ, {_VISIBLE: ",".join(gpu.uuid for gpu in chosen)}):
        yield


def _pinned(found: Sequence[Gpu], pins: Sequence[str] | None) -> list[Gpu]:
    """The GPUs that ``CUDA_VISIBLE_DEVICES`` and ``pins`` leave, in the order of the first."""
    chosen = nvml.visible(found)
    if pins is None:
        return chosen
    named = [gpu for pin in pins for gpu in nvml.visible(found, {_VISIBLE: pin})]
    return [gpu for gpu in chosen if gpu in named]


def _choice(pins: Sequence[str] | None) -> str:
    """What was chosen by whom, in words."""
    where = [f"{_VISIBLE}={os.environ[_VISIBLE]}"] if _VISIBLE in os.environ else []
    where += [] if pins is None else [f"the slot's visible: {', '.join(pins)}"]
    return " with ".join(where) or "this machine"


def _eligible(device_id: str, found: Sequence[Gpu], pins: Sequence[str] | None) -> list[Gpu]:
    """The GPUs that this job may hold, in the order to try."""
    chosen = _pinned(found, pins)
    matching = [gpu for gpu in chosen if gpu.device.id == device_id]
    if matching:
        return matching
    seen = ", ".join(sorted({gpu.device.id for gpu in chosen})) or "no GPU"
    raise UserError(f"This job belongs on {device_id}, but {_choice(pins)} gives {seen}.")


def _take(gpus: Sequence[Gpu], folder: Path) -> tuple[Gpu, Lock]:
    """Lock a GPU, shared, and return it with its lock: a free one first, then one that others share."""
    first = os.getpid() % len(gpus)  # spreads jobs that share over the GPUs
    turns = [(gpu, fcntl.LOCK_EX) for gpu in gpus] + [(gpu, fcntl.LOCK_SH) for gpu in (*gpus[first:], *gpus[:first])]
    told = False
    while True:
        for gpu, kind in turns:
            lock = Lock(folder / f"{gpu.uuid.replace('/', '_')}.lock")
            if lock.enter(kind):
                return gpu, lock
            if kind == fcntl.LOCK_SH and not told:
                _log.warning("Waiting for GPU %s, held by process %s.", gpu.uuid, lock.holder())
            lock.close()
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
