"""The manifest of a model folder: digests of its files, and one digest of its weights that no file layout changes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from exactgraph.canonical import digest, file_digest, read_json
from exactgraph.refusal import UserError
from exactgraph.sources.spec import class_of

if TYPE_CHECKING:
    import torch

_CHUNK = 1 << 22
_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
_NAMES = {"F64": "fp64", "F32": "fp32", "F16": "fp16", "BF16": "bf16"}
_TORCH = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}


class _Stored(NamedTuple):
    """Where one tensor lies: ``length`` bytes from ``offset`` in ``file``."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    offset: int
    length: int


def weights_digest(files: Iterable[Path]) -> str:
    """64 hex digits that stand for every tensor in these safetensors files: name, dtype, shape and bytes.

    How tensors are spread over files or ordered in them does not matter. Matrices with equal bytes count once, under the
    last of their names.
    """
    tensors = [tensor for file in sorted(files) for tensor in _stored(file)]
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:  # hashing releases the interpreter lock
        sums = list(pool.map(_stored_digest, tensors))
    return _combine((tensor.name, tensor.dtype, tensor.shape, sum_) for tensor, sum_ in zip(tensors, sums, strict=True))


def weights_digests_of_state(state: dict[str, torch.Tensor]) -> set[str]:
    """What :func:`weights_digest` is of the files that these tensors in memory, on any device, come from.

    A tensor may have several names: a tied output head is the embedding itself. Files hold it under the first of them, as
    transformers writes it, or under each; so there may be two digests. A model loaded in another precision than the stored
    one has neither.
    """
    firsts: dict[Any, str] = {}
    first_of = {name: firsts.setdefault(_place(tensor), name) for name, tensor in state.items()}
    once = list(firsts.values())
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        sums = dict(zip(once, pool.map(lambda name: _tensor_digest(state[name]), once), strict=True))
    return {
        _combine(
            (name, _TORCH[str(state[name].dtype).removeprefix("torch.")], tuple(state[name].shape), sums[first_of[name]])
            for name in names
        )
        for names in (once, list(state))
    }


def describe(model_dir: Path, resolved: dict[str, Any], prompts: str, license_name: str | None) -> dict[str, Any]:
    """The content of ``model.json`` for a complete model folder."""
    files = sorted(path for path in model_dir.rglob("*") if path.is_file())
    weights = [path for path in files if path.suffix == ".safetensors"]
    tensors = [tensor for file in weights for tensor in _stored(file)]
    if not tensors:
        raise UserError(f"The model {resolved['source']} holds no weights: its safetensors files are empty.")
    by_dtype: dict[str, int] = {}
    for tensor in tensors:
        by_dtype[tensor.dtype] = by_dtype.get(tensor.dtype, 0) + tensor.length
    dtype = max(sorted(by_dtype), key=lambda name: by_dtype[name])
    return {
        "source": resolved["source"],
        "model": resolved["model"],
        "commit": resolved["commit"],
        "weights_digest": weights_digest(weights),
        "files": {str(f.relative_to(model_dir)): {"sha256": file_digest(f), "size": f.stat().st_size} for f in files},
        "parameters": sum(tensor.length // _BYTES[tensor.dtype] for tensor in tensors),
        "weight_bytes": sum(by_dtype.values()),
        "dtype": _NAMES.get(dtype, dtype.lower()),
        "architecture": _architecture(model_dir, resolved["source"]),
        "prompts": prompts,
        "license": license_name,
        # Of a class of the user's own.
        **({"code": resolved["facts"]["code"]} if "code" in resolved["facts"] else {}),
    }


def _architecture(model_dir: Path, source: str) -> str:
    own = class_of(source)
    if own is not None:
        return own.rpartition(":")[2]
    return (read_json(model_dir / "config.json").get("architectures") or ["unknown"])[0]  # type: ignore[no-any-return]


def check(model_dir: Path, manifest: dict[str, Any]) -> list[str]:
    """What is wrong with a model folder, as sentences; empty where every file is as the manifest says."""
    problems: list[str] = []
    for name, facts in sorted(manifest["files"].items()):
        path = model_dir / name
        if not path.is_file():
            problems.append(f"{path} is missing.")
        elif path.stat().st_size != facts["size"]:
            problems.append(f"{path} has {path.stat().st_size} bytes, the manifest says {facts['size']}.")
        elif (found := file_digest(path)) != facts["sha256"]:
            problems.append(f"{path} has the SHA-256 {found}, the manifest says {facts['sha256']}.")
    return problems


def _stored(file: Path) -> list[_Stored]:
    """The tensors of one safetensors file, from its header alone."""
    try:
        with open(file, "rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            header = orjson.loads(opened.read(length))
        header.pop("__metadata__", None)
        start, size, tensors = 8 + length, file.stat().st_size, []
        for name, facts in header.items():
            begin, end = facts["data_offsets"]
            if facts["dtype"] not in _BYTES or not 0 <= begin <= end <= size - start:
                raise ValueError(f"the tensor {name} has dtype {facts['dtype']} and bytes {begin} to {end}")
            tensors.append(_Stored(name, facts["dtype"], tuple(facts["shape"]), file, start + begin, end - begin))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, MemoryError) as error:
        raise UserError(f"{file} is not a complete safetensors file with weights of a known dtype ({error}).") from error
    return tensors


def _stored_digest(tensor: _Stored) -> str:
    sha, left = hashlib.sha256(), tensor.length
    with open(tensor.file, "rb") as file:
        file.seek(tensor.offset)
        while left:
            chunk = file.read(min(_CHUNK, left))
            if not chunk:
                raise UserError(f"{tensor.file} became shorter while it was read.")
            sha.update(chunk)
            left -= len(chunk)
    return sha.hexdigest()


def _place(tensor: torch.Tensor) -> Any:
    """Equal for two tensors that are one: the same elements of the same memory."""
    return tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def _tensor_digest(tensor: torch.Tensor) -> str:
    """SHA-256 of the tensor's bytes in row-major order, as they lie in a file."""
    import torch

    flat = tensor.detach().contiguous().view(-1).view(torch.uint8)
    sha = hashlib.sha256()
    for chunk in torch.split(flat, _CHUNK):  # pieces: a copy of the whole matrix from the GPU is not needed
        sha.update(chunk.cpu().numpy().data)
    return sha.hexdigest()


def _combine(tensors: Iterable[tuple[str, str, tuple[int, ...], str]]) -> str:
    kept: dict[Any, tuple[str, str, list[int], str]] = {}
    for name, dtype, shape, sha in sorted(tensors):
        # Equal vectors stay apart: fresh norm weights are all ones and are not tied.
        kept[(dtype, shape, sha) if len(shape) > 1 else name] = (name, dtype, list(shape), sha)
    return digest(sorted(kept.values()))
