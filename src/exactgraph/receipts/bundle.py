"""A receipt with its evidence as one file, for another place: a gzip tar in the layout of the artifacts, without weights.

The same receipt gives the same bytes. Only what was verified gets a name that others read; what is there is never changed.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import re
import tarfile
import tempfile
import zlib
from contextlib import suppress
from pathlib import Path, PurePosixPath

import orjson

from exactgraph.canonical import file_digest, whole_file
from exactgraph.receipts.evidence import ENVIRONMENT, MODEL, locate
from exactgraph.receipts.schema import problems
from exactgraph.receipts.statement import RECEIPT
from exactgraph.receipts.verify import verify
from exactgraph.refusal import UserError

FILE_LIMIT, TOTAL_LIMIT = 64 << 20, 256 << 20  # bytes of one file, and of the unpacked tar
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]*(/[A-Za-z0-9_][A-Za-z0-9_.@+-]*)*")  # not hidden, no "..", no root
_DEPTH = 5  # model@commit, device, environment, protocol, receipt.json
Files = dict[PurePosixPath, bytes]  # by path below the root


def export_bundle(receipt_path: Path, out: Path) -> int:
    """Pack a receipt that verifies; returns how many files the bundle holds."""
    _demand_verified(receipt_path, f"The receipt {receipt_path} does not verify, so it was not packed")
    key = PurePosixPath(*Path(os.path.abspath(receipt_path)).parts[-_DEPTH:-1])
    try:
        files = {key / RECEIPT: receipt_path.read_bytes()}
        for path, (name, recorded) in _evidence(key, files[key / RECEIPT]).items():
            files[path] = locate(receipt_path.parent, name).read_bytes()
            if hashlib.sha256(files[path]).hexdigest() != recorded:
                raise UserError(f"{name} changed while {receipt_path} was packed; export it again.")
        if len(packed := _tar(files)) > TOTAL_LIMIT or max(map(len, files.values())) > FILE_LIMIT:
            raise UserError(f"The evidence of {receipt_path} is too large for a bundle; copy its folder instead.")
        with whole_file(out) as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as stream:  # no name, no time
            stream.write(packed)
    except OSError as error:
        raise UserError(f"The bundle {out} could not be written: {error.strerror} ({error.filename}).") from error
    return len(files)


def import_bundle(bundle: Path, root: Path) -> tuple[Path, bool]:
    """Verify a bundle and put it below ``root``; returns the receipt's place, and False where it was there already."""
    key, files = _read(bundle)
    receipt, place = files[key / RECEIPT], root / key / RECEIPT
    shared = {path: content for path, content in files.items() if not path.is_relative_to(key)}
    try:
        root.mkdir(parents=True, exist_ok=True)
        # In the root: a rename is whole within one file system only.
        with tempfile.TemporaryDirectory(prefix=".import-", dir=root) as name:
            for path, content in files.items():
                with whole_file(Path(name, path)) as file:
                    file.write(content)
            _demand_verified(Path(name, key, RECEIPT), f"The bundle {bundle} does not verify, so nothing was imported")
            if _is_there(place, receipt):
                return place, False
            _demand_same(root, shared)
            place.parent.parent.mkdir(parents=True, exist_ok=True)
            for path in shared:
                with suppress(FileExistsError):  # unlike a rename, a link never replaces what another import put there
                    os.link(Path(name, path), root / path)
            _demand_same(root, shared)
            try:
                os.rename(Path(name, key), place.parent)
            except OSError:
                if _is_there(place, receipt):
                    return place, False
                raise
    except OSError as error:
        raise UserError(f"The bundle {bundle} could not be put below {root}: {error.strerror} ({error.filename}).") from error
    return place, True


def _tar(files: Files) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(files, key=str):
            member = tarfile.TarInfo(str(path))  # mode 0644, owner 0, group 0, time 0
            member.size = len(files[path])
            tar.addfile(member, io.BytesIO(files[path]))
    return packed.getvalue()


def _read(bundle: Path) -> tuple[PurePosixPath, Files]:
    """The key and the files of a bundle, in memory; refuses every name but the receipt's and those that it lists."""
    files: Files = {}
    try:
        with gzip.open(bundle) as stream:
            if len(packed := stream.read(TOTAL_LIMIT + 1)) > TOTAL_LIMIT:
                raise ValueError(f"it unpacks to more than {TOTAL_LIMIT >> 20} MiB")
        with tarfile.open(fileobj=io.BytesIO(packed), mode="r:") as tar:
            for member in tar:
                plain = member.type == tarfile.REGTYPE and not member.issparse() and _NAME.fullmatch(member.name)
                if not plain or not 0 <= member.size <= FILE_LIMIT or (path := PurePosixPath(member.name)) in files:
                    raise ValueError(f"{member.name!r} is no regular file, or has no name for evidence, or is too large")
                files[path] = packed[member.offset_data : member.offset_data + member.size]
        if len(receipts := [path for path in files if path.name == RECEIPT and len(path.parts) == _DEPTH]) != 1:
            raise ValueError(f"it holds {len(receipts)} receipts instead of one")
        listed = _evidence(receipts[0].parent, files[receipts[0]]).keys() | {receipts[0]}
        for path in sorted(listed ^ files.keys()):
            raise ValueError(f"it {'lacks' if path in listed else 'holds, beside what its receipt lists,'} {path}")
    except (tarfile.TarError, zlib.error, OSError, EOFError, ValueError, OverflowError, RecursionError) as error:
        raise UserError(f"{bundle} cannot be read as a bundle: {error}. Nothing was imported.") from error
    return receipts[0].parent, files


def _evidence(key: PurePosixPath, receipt: bytes) -> dict[PurePosixPath, tuple[str, str]]:
    """Where the files that a receipt lists lie below the root, each with its name there and its SHA-256."""
    shared = {ENVIRONMENT: key.parent / "environment.json", MODEL: key.parents[2] / "model.json"}
    statement = orjson.loads(receipt)
    for problem in problems(statement):
        raise ValueError(f"its receipt does not conform to the schema: {problem}")
    return {shared.get(name, key / name): (name, sha) for name, sha in statement["predicate"]["evidence"].items()}


def _demand_verified(receipt_path: Path, otherwise: str) -> None:
    for line in verify(receipt_path).lines:
        if line.startswith("no: "):
            raise UserError(f"{otherwise}: {line.removeprefix('no: ')}.")


def _is_there(place: Path, receipt: bytes) -> bool:
    """Whether this receipt is there with its evidence. Refuses where its folder holds something else."""
    if not place.parent.exists() or (place.parent.is_dir() and not any(place.parent.iterdir())):
        return False
    there, coming = file_digest(place) if place.is_file() else "none", hashlib.sha256(receipt).hexdigest()
    if there != coming:
        raise UserError(
            f"{place.parent} holds another receipt (SHA-256 {there}) than the bundle ({coming}): choose another ROOT."
        )
    _demand_verified(place, f"{place.parent} holds the same receipt, but it does not verify there; move it away")
    return True


def _demand_same(root: Path, files: Files) -> None:
    for path, content in files.items():
        if (root / path).exists() and (root / path).read_bytes() != content:
            raise UserError(f"{root / path} differs from the bundle's. Nothing was imported: choose another ROOT.")
