"""Models on the hub: what a revision stands for today, and which files of it are used. Free of torch.

The hub is that of ``HF_ENDPOINT``; tokens, offline mode and the local cache are ``huggingface_hub``'s own (``HF_TOKEN``,
``HF_HUB_OFFLINE``, ``HF_HOME``). Only safetensors, configuration and tokenizer are taken, and code where that is allowed.
"""

from __future__ import annotations

import hashlib
import os
import sys
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import orjson
from huggingface_hub import HfApi, constants, hf_hub_url, try_to_load_from_cache
from huggingface_hub.file_download import http_get
from huggingface_hub.utils._headers import build_hf_headers

from exactgraph.refusal import UserError
from exactgraph.sources import code, path
from exactgraph.sources.hub_errors import Unreachable, sentences

_TIMEOUT = 30.0  # seconds for an answer about a repository
_CHUNK = 1 << 22


def endpoint() -> str:
    """The address of the hub, read now: the library reads it only when it is imported."""
    return (os.environ.get("HF_ENDPOINT") or constants.ENDPOINT).rstrip("/")


def pin(repository: str, revision: str, remote_code: bool) -> dict[str, Any]:
    """The facts of a revision: the full commit as ``sha``, and the files that make up the model.

    A file has its ``size`` in bytes and the digest that the hub knows: ``sha256`` for large files, ``git`` (the SHA-1 of the
    git object) for others.
    """
    place = f"hub:{repository}@{revision}"
    try:
        sha, present, license_name = _listing(repository, revision)
    except Unreachable:
        found = _cached_listing(repository, revision)
        if found is None:
            raise
        sha, present, license_name = *found, None
        place = f"The cached part of {place}"
        print(f"The hub gives no answer: {repository} at {revision} is taken from its local cache.", file=sys.stderr)
    facts = {"repository": repository, "revision": revision, "sha": sha, "license": license_name}

    def read(name: str) -> Any:
        return orjson.loads(_content(facts, name, present[name]))

    names = path.select(place, present, read) + code.select(place, present, read, remote_code)
    return facts | {"files": {name: present[name] for name in names}}


def cached_file(facts: dict[str, Any], name: str) -> Path | None:
    """The file in the hub's local cache, not checked."""
    found = try_to_load_from_cache(facts["repository"], name, revision=facts["sha"])
    return Path(found) if isinstance(found, str) else None


def transfer(facts: dict[str, Any], name: str, size: int, file: BinaryIO, offset: int) -> None:
    """Append what is missing of a file to ``file``, which holds ``offset`` bytes; short breaks are bridged by the library."""
    address = endpoint()
    # Ranges count bytes of the file itself, so it must come without compression.
    headers = build_hf_headers() | {"Accept-Encoding": "identity"}
    with sentences(facts["repository"], facts["revision"], address):
        url = hf_hub_url(facts["repository"], name, revision=facts["sha"], endpoint=address)
        http_get(url, file, resume_size=offset, headers=headers, expected_size=size, displayed_filename=name)


def matches(file: BinaryIO, expected: dict[str, Any]) -> bool:
    """Whether the bytes from the start of ``file`` are those that the hub has."""
    if "sha256" in expected:
        sha = hashlib.sha256()
    else:
        sha = hashlib.sha1(f"blob {expected['size']}\0".encode(), usedforsecurity=False)
    size = 0
    file.seek(0)
    while chunk := file.read(_CHUNK):
        sha.update(chunk)
        size += len(chunk)
    return size == expected["size"] and sha.hexdigest() == expected.get("sha256", expected.get("git"))


def corrupt(facts: dict[str, Any], name: str) -> UserError:
    """The sentence for bytes that are not the hub's."""
    return UserError(
        f"{name} of {facts['repository']} is corrupt: its bytes are not those that the hub lists for commit "
        f"{facts['sha'][:12]}. The file was not kept. Run again; if it stays so, {endpoint()} or something on the way to it "
        f"serves other bytes: set HF_ENDPOINT to another mirror."
    )


def _listing(repository: str, revision: str) -> tuple[str, dict[str, dict[str, Any]], str | None]:
    """Commit, files in the repository's top folder, and licence, as the hub says now."""
    address = endpoint()
    with sentences(repository, revision, address):
        try:
            info = HfApi(endpoint=address).model_info(repository, revision=revision, files_metadata=True, timeout=_TIMEOUT)
            sha, siblings = info.sha, info.siblings or []
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{address} does not answer like a model hub: check HF_ENDPOINT.") from error
    files: dict[str, dict[str, Any]] = {}
    for entry in siblings:
        if "/" not in entry.rfilename and entry.size is not None and (entry.lfs or entry.blob_id):
            digest = {"sha256": entry.lfs.sha256} if entry.lfs else {"git": entry.blob_id}
            files[entry.rfilename] = {"size": entry.size, **digest}
    if not sha or (siblings and not files):
        raise UserError(
            f"{address} does not say the commit, sizes and digests of {repository}: set HF_ENDPOINT to a hub that does."
        )
    return sha, files, getattr(info.card_data, "license", None)


def _cached_listing(repository: str, revision: str) -> tuple[str, dict[str, dict[str, Any]]] | None:
    """Commit and files of what the local cache holds for a revision; blobs there are named by the digest."""
    config = try_to_load_from_cache(repository, "config.json", revision=revision)
    if not isinstance(config, str):
        return None
    snapshot = Path(config).parent
    files: dict[str, dict[str, Any]] = {}
    for entry in sorted(snapshot.iterdir()):
        blob = entry.resolve()
        if blob.is_file():
            digest = {"sha256": blob.name} if len(blob.name) == 64 else {"git": blob.name}
            if not entry.is_symlink():  # a cache on a file system without links
                digest = {"sha256": hashlib.sha256(entry.read_bytes()).hexdigest()}
            files[entry.name] = {"size": blob.stat().st_size, **digest}
    return snapshot.name, files


def _content(facts: dict[str, Any], name: str, expected: dict[str, Any]) -> bytes:
    cached = cached_file(facts, name)
    buffer = BytesIO(cached.read_bytes() if cached else b"")
    if not cached or not matches(buffer, expected):
        buffer = BytesIO()
        transfer(facts, name, expected["size"], buffer, 0)
        if not matches(buffer, expected):
            raise corrupt(facts, name)
    return buffer.getvalue()
