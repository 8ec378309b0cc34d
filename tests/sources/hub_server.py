"""A stand-in for the model hub on the loopback interface: one repository, what can go wrong with it, and a log of requests."""

from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

REPOSITORY = "maker/Tiny-Llama"
LARGE = ".safetensors"  # what the hub stores by SHA-256; the rest are plain git objects


@dataclass
class Asked:
    method: str
    path: str
    range: str | None
    token: str | None
    sent: int = 0


@dataclass
class Hub:
    """``commits`` maps a full commit to its files, ``refs`` a revision to its commit."""

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    gated: bool = False  # only with the token "good"
    cut: dict[str, list[int]] = field(default_factory=dict)  # bytes after which the next answers of a file break off
    stall: dict[str, int] = field(default_factory=dict)  # bytes after which a file's answer stands still
    down: int | None = None  # a status for every request of a large file
    status: int | None = None  # a status for every request
    ranges: bool = True
    store: str = ""  # the address of another stand-in that large files are redirected to
    tampered: set[str] = field(default_factory=set)
    asked: list[Asked] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)
    stalled: threading.Event = field(default_factory=threading.Event)
    address: str = ""

    def push(self, files: dict[str, bytes], revision: str = "main") -> str:
        """A commit with these files, to which ``revision`` moves; returns its full name."""
        whole = hashlib.sha1(b"".join(name.encode() + data for name, data in sorted(files.items()))).hexdigest()
        self.commits[whole] = dict(files)
        self.refs[revision] = whole
        return whole

    def transfers(self, name: str) -> list[Asked]:
        return [each for each in self.asked if each.method == "GET" and each.path.endswith(f"/{name}")]


def folder_files(folder: Path) -> dict[str, bytes]:
    return {entry.name: entry.read_bytes() for entry in folder.iterdir()}


def digests(name: str, data: bytes) -> dict[str, Any]:
    git = hashlib.sha1(f"blob {len(data)}\0".encode() + data).hexdigest()
    entry: dict[str, Any] = {"rfilename": name, "size": len(data), "blobId": git}
    if name.endswith(LARGE):
        entry["lfs"] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest(), "pointerSize": 134}
    return entry


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ") or None
        path = unquote(urlsplit(self.path).path)
        self.asked = Asked(self.command, path, self.headers.get("Range"), token)
        self.hub.asked.append(self.asked)
        if self.hub.status:
            self._refuse(self.hub.status)
        elif token == "bad":
            self._refuse(401, message="Invalid credentials in Authorization header")
        elif path.startswith("/api/models/") and "/tree/" in path:
            repository, _, revision = path.removeprefix("/api/models/").partition("/tree/")
            self._tree(repository, revision)
        elif path.startswith("/api/models/"):
            repository, _, revision = path.removeprefix("/api/models/").partition("/revision/")
            self._info(repository, revision or "main")
        elif "/resolve/" in path:
            repository, _, rest = path.lstrip("/").partition("/resolve/")
            self._file(repository, *rest.split("/", 1))
        else:
            self._refuse(404)

    def _info(self, repository: str, revision: str) -> None:
        commit = self._commit(repository, revision)
        if commit:
            siblings = [digests(name, data) for name, data in self.hub.commits[commit].items()]
            info = {"id": repository, "sha": commit, "siblings": siblings, "cardData": {"license": "apache-2.0"}}
            self._send(200, json.dumps(info).encode(), {"Content-Type": "application/json"})

    def _tree(self, repository: str, revision: str) -> None:
        """The listing that whole snapshots are fetched by."""
        commit = self._commit(repository, revision)
        if commit:
            listing = []
            for name, data in self.hub.commits[commit].items():
                known = digests(name, data)
                entry = {"type": "file", "path": name, "size": len(data), "oid": known["blobId"]}
                if "lfs" in known:
                    entry["lfs"] = known["lfs"] | {"oid": known["lfs"]["sha256"]}
                listing.append(entry)
            self._send(200, json.dumps(listing).encode(), {"Content-Type": "application/json"})

    def _commit(self, repository: str, revision: str) -> str | None:
        if repository != REPOSITORY:
            self._refuse(404, "RepoNotFound")
        elif revision not in self.hub.refs and revision not in self.hub.commits:
            self._refuse(404, "RevisionNotFound")
        else:
            return self.hub.refs.get(revision, revision)
        return None

    def _file(self, repository: str, revision: str, name: str) -> None:
        commit = self._commit(repository, revision)
        if not commit:
            return
        if self.hub.gated and self.asked.token != "good":
            self._refuse(403 if self.asked.token else 401, "GatedRepo")
        elif self.hub.down and name.endswith(LARGE):
            self._refuse(self.hub.down)
        elif self.hub.store and name.endswith(LARGE):
            self._send(302, b"", {"Location": f"{self.hub.store}/{repository}/resolve/{commit}/{name}"})
        elif name not in self.hub.commits[commit]:
            self._refuse(404, "EntryNotFound")
        else:
            self._content(commit, name)

    def _content(self, commit: str, name: str) -> None:
        data = self.hub.commits[commit][name]
        known = digests(name, data)
        etag = known["lfs"]["sha256"] if "lfs" in known else known["blobId"]
        headers = {"X-Repo-Commit": commit, "ETag": f'"{etag}"', "Accept-Ranges": "bytes"}
        if "lfs" in known:
            headers |= {"X-Linked-Etag": f'"{etag}"', "X-Linked-Size": str(len(data))}
        if name in self.hub.tampered:
            data = data[:-1] + bytes([data[-1] ^ 1])
        if self.asked.range and self.hub.ranges:
            start = int(self.asked.range.removeprefix("bytes=").split("-")[0])
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
            self._send(206, data[start:], headers, name)
        else:
            self._send(200, data, headers, name)

    def _refuse(self, status: int, code: str | None = None, message: str = "no") -> None:
        self._send(status, b"", {"X-Error-Message": message} | ({"X-Error-Code": code} if code else {}))

    def _send(self, status: int, body: bytes, headers: dict[str, str], name: str = "") -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        cuts = self.hub.cut.get(name, [])
        end = cuts.pop(0) if cuts else self.hub.stall.get(name, len(body))
        self.wfile.write(body[:end])
        self.wfile.flush()
        self.asked.sent = len(body[:end])
        if name in self.hub.stall:
            self.hub.stalled.set()
            self.hub.released.wait(60)
        if end < len(body):
            self.close_connection = True


def serve(hub: Hub) -> ThreadingHTTPServer:
    """The server of ``hub``, running in a thread of its own."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("HubHandler", (Handler,), {"hub": hub}))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    return server
