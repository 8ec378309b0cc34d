"""A receipt as one file: the same bytes each time, verified before it is anywhere, and never over what is there."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from evidence_world import World
from test_verify_command import command

from exactgraph.canonical import file_digest, write_json
from exactgraph.receipts import bundle as module
from exactgraph.receipts.bundle import export_bundle, import_bundle
from exactgraph.receipts.statement import write
from exactgraph.receipts.verify import verify
from exactgraph.refusal import UserError

Members = dict[str, bytes]


def receipt_of(world: World) -> Path:
    key_dir = world.write()
    write(key_dir)
    return key_dir / "receipt.json"


@pytest.fixture
def receipt(world: World) -> Path:
    return receipt_of(world)


@pytest.fixture
def bundle(receipt: Path, tmp_path: Path) -> Path:
    export_bundle(receipt, tmp_path / "bundle.tar.gz")
    return tmp_path / "bundle.tar.gz"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "elsewhere"


def tree(root: Path) -> dict[Path, bytes | None]:
    return {path.relative_to(root): path.read_bytes() if path.is_file() else None for path in sorted(root.rglob("*"))}


def members(bundle: Path) -> Members:
    with tarfile.open(bundle) as tar:
        return {name: file.read() for name in tar.getnames() if (file := tar.extractfile(name))}


def pack(bundle: Path, files: Members, *more: tarfile.TarInfo) -> Path:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        for member in more:
            tar.addfile(member, io.BytesIO(bytes(member.size)))
    bundle.write_bytes(gzip.compress(packed.getvalue()))
    return bundle


def refused(bundle: Path, root: Path) -> str:
    """The sentence, after a look that the refused bundle left nothing, hidden or not."""
    before = tree(root)
    with pytest.raises(UserError) as caught:
        import_bundle(bundle, root)
    assert tree(root) == before
    return str(caught.value)


def test_round_trip(world: World, receipt: Path, bundle: Path, root: Path) -> None:
    place, added = import_bundle(bundle, root)
    assert added
    assert verify(place).ok, verify(place).lines
    assert tree(root) == tree(world.root)


def test_weights_stay_at_home(world: World, tmp_path: Path, root: Path) -> None:
    world.weights()
    for run in world.baselines["default"]:
        run["weights_digest"] = world.model["weights_digest"]
    export_bundle(receipt_of(world), tmp_path / "bundle")
    assert not [name for name in members(tmp_path / "bundle") if "safetensors" in name or "/model/" in name]
    assert import_bundle(tmp_path / "bundle", root)[1]


def test_the_same_receipt_gives_the_same_bytes(receipt: Path, bundle: Path, tmp_path: Path, root: Path) -> None:
    (receipt.parent / "candidates" / "step" / "notes.txt").write_text("no evidence")
    export_bundle(receipt, tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == bundle.read_bytes()
    export_bundle(import_bundle(bundle, root)[0], tmp_path / "there.tar")
    assert (tmp_path / "there.tar").read_bytes() == bundle.read_bytes()
    with tarfile.open(bundle) as tar:
        found = tar.getmembers()
    assert [member.name for member in found] == sorted(member.name for member in found)
    assert {(m.mtime, m.uid, m.gid, m.uname, m.gname, m.mode, m.type) for m in found} == {(0, 0, 0, "", "", 0o644, b"0")}


def test_what_does_not_verify_is_not_packed(receipt: Path, tmp_path: Path) -> None:
    (receipt.parent / "frozen.json").unlink()
    with pytest.raises(UserError, match=r"does not verify, so it was not packed: .*frozen\.json is missing"):
        export_bundle(receipt, tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


def test_flipped_bytes_of_the_file(bundle: Path, root: Path) -> None:
    content = bundle.read_bytes()
    for position in range(10, len(content), len(content) // 40):  # after gzip's header, which carries nothing
        bent = bytearray(content)
        bent[position] ^= 1 << position % 8
        bundle.write_bytes(bent)
        refused(bundle, root)


def test_a_flipped_byte_of_each_packed_file(bundle: Path, root: Path) -> None:
    files = members(bundle)
    for name, content in files.items():
        middle = len(content) // 2
        bent = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        refused(pack(bundle, files | {name: bent}), root)


def test_truncated_files(bundle: Path, root: Path) -> None:
    content = bundle.read_bytes()
    for size in (0, 5, 100, len(content) // 2, len(content) - 1):
        bundle.write_bytes(content[:size])
        assert "cannot be read as a bundle" in refused(bundle, root)
        assert not root.exists()
    packed = gzip.decompress(content)
    for size in (700, len(packed) // 2 + 7):
        bundle.write_bytes(gzip.compress(packed[:size]))
        assert "cannot be read as a bundle" in refused(bundle, root)
    assert not root.exists()


@pytest.mark.parametrize(
    "name", ["../evil.json", "a/../../evil.json", "/tmp/evil.json", "./evil.json", ".evil", "a//b", "a\\b"]
)
def test_names_that_lead_elsewhere(name: str, bundle: Path, root: Path) -> None:
    assert repr(name) in refused(pack(bundle, members(bundle) | {name: b"{}"}), root)
    assert not root.exists()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
@pytest.mark.parametrize("instead", [True, False])
def test_what_is_no_regular_file(kind: bytes, instead: bool, bundle: Path, root: Path) -> None:
    files = members(bundle)
    name = next(name for name in files if name.endswith("frozen.json"))
    member = tarfile.TarInfo(name if instead else "link")
    member.type, member.linkname = kind, "/etc/passwd"
    if instead:
        del files[name]
    assert "is no regular file" in refused(pack(bundle, files, member), root)
    assert not root.exists()


def test_files_that_do_not_belong(bundle: Path, root: Path) -> None:
    files = members(bundle)
    key = next(name for name in files if name.endswith("receipt.json")).removesuffix("receipt.json")
    assert "holds, beside" in refused(pack(bundle, files | {f"{key}extra.json": b"{}"}), root)
    assert "holds 2 receipts" in refused(pack(bundle, files | {"a@b/c/d/e/receipt.json": b"{}"}), root)
    assert "holds 0 receipts" in refused(pack(bundle, {"a@b/model.json": b"{}"}), root)
    assert "lacks" in refused(pack(bundle, {name: files[name] for name in files if "frozen" not in name}), root)
    assert "no regular file" in refused(pack(bundle, files, tarfile.TarInfo(f"{key}frozen.json")), root)
    assert not root.exists()


def test_files_that_are_too_large(bundle: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FILE_LIMIT", 1000)
    assert "too large" in refused(bundle, root)
    monkeypatch.setattr(module, "TOTAL_LIMIT", 2000)
    assert "unpacks to more than" in refused(bundle, root)
    assert not root.exists()


def test_a_consistent_receipt_under_another_name(bundle: Path, root: Path) -> None:
    files = {name.replace("nvidia-test", "nvidia-other"): content for name, content in members(bundle).items()}
    assert "device folder is named" in refused(pack(bundle, files), root)


def test_a_second_import_says_so(bundle: Path, root: Path) -> None:
    import_bundle(bundle, root)
    before = tree(root)
    assert import_bundle(bundle, root)[1] is False
    assert tree(root) == before


def test_a_damaged_copy_is_not_called_there(bundle: Path, root: Path) -> None:
    place, _ = import_bundle(bundle, root)
    (place.parent / "frozen.json").unlink()
    assert "does not verify there" in refused(bundle, root)


def test_another_receipt_of_the_same_key(bundle: Path, root: Path, tmp_path: Path) -> None:
    place, _ = import_bundle(bundle, root)
    other = World(tmp_path / "other")
    other.validate("C022", ratio=1.5)
    export_bundle(receipt_of(other), tmp_path / "second")
    sentence = refused(tmp_path / "second", root)
    assert file_digest(place) in sentence
    assert file_digest(other.write() / "receipt.json") in sentence


@pytest.mark.parametrize("name", ["model.json", "environment.json"])
def test_shared_files_with_other_content(name: str, bundle: Path, root: Path) -> None:
    there = root / next(path for path in members(bundle) if path.endswith(name))
    write_json(there, {"other": 1})
    assert f"{there} differs" in refused(bundle, root)


def test_an_unfinished_key_is_left_alone(bundle: Path, root: Path) -> None:
    receipt = next(path for path in members(bundle) if path.endswith("receipt.json"))
    write_json((root / receipt).parent / "plan.json", {})
    assert "another receipt (SHA-256 none)" in refused(bundle, root)


def second_device(world: World) -> None:
    world.device = world.device | {"id": "nvidia-second-sm80-108sm-80g"}


def test_two_devices_in_one_root(bundle: Path, root: Path, tmp_path: Path) -> None:
    other = World(tmp_path / "other")
    second_device(other)
    export_bundle(receipt_of(other), tmp_path / "second")
    places = [import_bundle(path, root)[0] for path in (bundle, tmp_path / "second")]
    assert all(verify(place).ok for place in places)
    listed = command("status", root)
    assert listed.returncode == 0, listed
    assert "nvidia-test" in listed.stdout
    assert "nvidia-second" in listed.stdout
    assert "step" in command("table", places[1]).stdout


@pytest.mark.parametrize("second", [lambda world: None, second_device, lambda world: world.validate("C022", ratio=1.5)])
def test_imports_at_once(second: Callable[[World], None], bundle: Path, root: Path, tmp_path: Path) -> None:
    other = World(tmp_path / "other")
    second(other)
    export_bundle(receipt_of(other), tmp_path / "second")

    def attempt(path: Path) -> bool | str:
        try:
            return import_bundle(path, root)[1]
        except UserError as error:
            return str(error)

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(attempt, [bundle, tmp_path / "second"] * 4))
    keys = list(root.glob("*@*/*/*/*/receipt.json"))
    assert results.count(True) == len(keys), results
    assert all("another receipt" in result for result in results if isinstance(result, str)), results
    assert all(verify(key).ok for key in keys)
    assert not list(root.glob(".*"))


def test_a_full_disk_leaves_whole_files(bundle: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "some.json")

    monkeypatch.setattr(module.os, "rename", full)
    with pytest.raises(UserError, match="No space left on device"):
        import_bundle(bundle, root)
    assert {path.name for path in root.rglob("*") if path.is_file()} == {"model.json", "environment.json"}
    assert not list(root.glob(".*"))
    monkeypatch.undo()
    assert import_bundle(bundle, root)[1]


def test_the_commands(receipt: Path, tmp_path: Path, root: Path) -> None:
    out = tmp_path / "new" / "bundle"
    assert command("export", receipt, "--out", out).returncode == 0
    assert "verified and imported" in command("import", out, root).stdout
    again = command("import", out, root)
    assert (again.returncode, again.stderr) == (0, "")
    assert "already there" in again.stdout
    missing = command("import", tmp_path / "none", root)
    assert missing.returncode == 2
    assert missing.stderr.startswith("exactgraph: ")
    assert "Traceback" not in missing.stderr
