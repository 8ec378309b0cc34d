"""Which model folder a bench works on. Free of torch, so that a wrong name is said at once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exactgraph.canonical import read_json
from exactgraph.refusal import UserError
from exactgraph.sources.manifest import check, weights_digest
from exactgraph.sources.path import TOKENIZER_FILES
from exactgraph.sources.spec import slug
from exactgraph.workflow.keys import ROOT


@dataclass(frozen=True)
class Located:
    """A model folder, with the manifest that lies beside it or None."""

    name: str
    folder: Path
    manifest: dict[str, Any] | None

    @property
    def has_text(self) -> bool:
        """Whether prompts are texts for the model's tokenizer; else they lie in its folder."""
        if self.manifest is not None:
            return bool(self.manifest["prompts"] == "text")
        return any((self.folder / name).is_file() for name in TOKENIZER_FILES)

    @property
    def has_windows(self) -> bool:
        """Whether the model hears: what it is asked lies in its ``windows.npz``."""
        return (self.folder / "windows.npz").is_file()

    def check(self) -> None:
        """Raises ``UserError`` where the folder is no complete model, or not the one of its manifest."""
        if not any(self.folder.glob("*.safetensors")):
            raise UserError(f"{self.folder} holds no safetensors weights; other formats are not loaded.")
        if not self.has_text and not self.has_windows and not (self.folder / "prompts.json").is_file():
            raise UserError(
                f"{self.folder} has neither a tokenizer nor a prompts.json to take prompts from: make a folder with seeded "
                f"prompts of it with exactgraph resolve path:{self.folder} and exactgraph download."
            )
        problems = [] if self.manifest is None else check(self.folder, self.manifest)
        if problems:
            raise UserError(f"The model in {self.folder} is not the one that was downloaded: {problems[0]} Delete it.")

    def describe(self) -> dict[str, Any]:
        """Which weights these are, for the output. Reads them all where there is no manifest."""
        known = self.manifest or {"weights_digest": weights_digest(self.folder.glob("*.safetensors"))}
        facts = {key: known.get(key) for key in ("source", "commit", "weights_digest", "architecture", "parameters")}
        return {"name": self.name, "folder": str(self.folder), **facts}


def locate(model: str, root: Path = Path(ROOT)) -> Located:
    """The folder that ``model`` names: a model folder, the folder around one, or a source downloaded below ``root``."""
    folder = Path(model).expanduser()
    if folder.is_dir():
        inner = folder / "model"
        return _located(inner if (inner / "config.json").is_file() else folder)
    if ":" not in model:
        raise UserError(f"There is no model folder {model}. Name one, or a source such as 'random:minicpm5-1b?seed=0'.")
    return _located(_downloaded(model, root))


def _located(folder: Path) -> Located:
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder} is not a Hugging Face model folder: it holds no config.json.")
    manifest = folder.parent / "model.json"
    if folder.name != "model" or not manifest.is_file():
        return Located(folder.resolve().name, folder, None)
    content = read_json(manifest)
    return Located(f"{content['model']}@{content['commit']}", folder, content)


def _downloaded(spec: str, root: Path) -> Path:
    name = slug(spec)
    pinned = root / "sources" / f"{name}.json"
    if pinned.is_file():
        found = [root / f"{name}@{read_json(pinned)['commit']}" / "model.json"]
    else:
        found = list(root.glob(f"{name}@*/model.json"))
    complete = sorted(manifest.parent / "model" for manifest in found if manifest.is_file())
    if len(complete) > 1:
        raise UserError(f"{spec} lies under {root} in several commits; name one: {', '.join(map(str, complete))}.")
    if not complete:
        raise UserError(
            f"{spec} was not downloaded to {root}: put it under models in config.yaml and run snakemake --cores 1 confirm, or "
            f"run exactgraph resolve {spec!r} --out {pinned} and then exactgraph download."
        )
    return complete[0]
