"""Model folders: which of their files are used and what is refused, wherever they lie; and the copy of a local one."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import orjson

from exactgraph.canonical import file_digest, read_json
from exactgraph.refusal import UserError
from exactgraph.sources import code
from exactgraph.sources.progress import bar

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "spiece.model")
_OPTIONAL = (
    "generation_config.json",
    *TOKENIZER_FILES,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "merges.txt",
    "source.spm",
    "target.spm",
    "chat_template.jinja",
    "chat_template.json",
    "preprocessor_config.json",
)
_INDEX = "model.safetensors.index.json"
_PICKLES = {".bin", ".pt", ".pth", ".ckpt", ".pkl"}


def file_table(folder: Path, remote_code: bool) -> dict[str, dict[str, Any]]:
    """``{name: {"sha256", "size"}}`` of the files that make up the model; reads every one of them whole."""
    names = _names(folder, remote_code)
    with bar("digest", sum((folder / name).stat().st_size for name in names)) as progress:
        table: dict[str, dict[str, Any]] = {}
        for name in names:
            size = (folder / name).stat().st_size
            table[name] = {"sha256": file_digest(folder / name), "size": size}
            progress.update(size)
    return table


def copy(folder: Path, files: dict[str, dict[str, Any]], target: Path) -> None:
    """Copy what was resolved. A hard link would follow later edits in place, so bytes are copied and checked."""
    with bar("copy", sum(facts["size"] for facts in files.values())) as progress:
        for name, facts in files.items():
            try:
                shutil.copyfile(folder / name, target / name)
            except FileNotFoundError:
                raise UserError(
                    f"{folder / name} has gone since the model was resolved: put it back or resolve again."
                ) from None
            if file_digest(target / name) != facts["sha256"]:
                raise UserError(
                    f"{folder / name} has changed since the model was resolved: resolve again to use the new content."
                )
            progress.update(facts["size"])


def select(place: str, present: Collection[str], read: Callable[[str], Any]) -> list[str]:
    """The names of the files that make up the model, of those ``present`` at ``place``; ``read`` parses one of them."""
    if "config.json" not in present:
        raise UserError(f"{place} has no config.json: it is not a Hugging Face model folder.")
    return sorted(["config.json", *_weight_names(place, present, read), *(name for name in _OPTIONAL if name in present)])


def _names(folder: Path, remote_code: bool) -> list[str]:
    if not folder.is_dir():
        raise UserError(f"There is no folder {folder}: path:FOLDER needs a local Hugging Face model folder.")
    present = {entry.name for entry in folder.iterdir() if entry.is_file()}

    def read(name: str) -> Any:
        return read_json(folder / name)

    return select(str(folder), present, read) + code.select(str(folder), present, read, remote_code)


def _weight_names(place: str, present: Collection[str], read: Callable[[str], Any]) -> list[str]:
    if _INDEX in present:
        try:
            shards = sorted(set(read(_INDEX)["weight_map"].values()))
        except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{place}/{_INDEX} is not a safetensors index: it has no readable weight_map.") from error
        for shard in shards:
            if Path(shard).name != shard or not shard.endswith(".safetensors"):
                raise UserError(f"{place}/{_INDEX} names {shard!r}: only safetensors files in the folder itself are used.")
            if shard not in present:
                raise UserError(f"{place} lacks {shard}, which its index names: the model is incomplete.")
        return [_INDEX, *shards]
    if "model.safetensors" in present:
        return ["model.safetensors"]
    pickles = sorted(name for name in present if Path(name).suffix in _PICKLES)
    if pickles:
        raise UserError(
            f"{place} has its weights only in pickled files ({', '.join(pickles)}): loading a pickle can run any code, so "
            f"only safetensors are accepted. Convert the model once with save_pretrained in a place that you trust."
        )
    raise UserError(f"{place} has no weights: neither model.safetensors nor {_INDEX} is there.")
