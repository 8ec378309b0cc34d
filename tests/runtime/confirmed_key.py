"""A confirmed rehearsal on this CPU: the real stages on a tiny model, in this process, which pretends to be several."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from transformers import AutoModelForCausalLM, AutoModelForSpeechSeq2Seq

from exactgraph.candidates.registry import CONTROLS
from exactgraph.canonical import read_json, short, write_json
from exactgraph.environment.probe import present
from exactgraph.runtime.load import DTYPES
from exactgraph.sources.download import download
from exactgraph.sources.resolve import resolve
from exactgraph.stages import baseline, build, confirm, freeze, profile, rank, receipt, validate
from exactgraph.workflow.keys import Key
from exactgraph.workflow.stage_digest import stage_digest

SOURCE = "random:tiny-llama?seed=0"
SPEECH = "random:tiny-whisper?seed=0"
WINDOWS = {"encoder_batch": 3, "device_mib": 1, "parallel": 2}
_NEW_TOKENS = {"heldout": 6, "confirm": 6, "long": 24}


@dataclass(frozen=True)
class Confirmed:
    """A store with one receipt; ``model`` is the folder that the receipt's model was loaded from."""

    store: Path
    receipt: Path
    precision: str
    speech: bool = False

    @property
    def model(self) -> Path:
        return self.receipt.parents[3] / "model"

    def load(self) -> Any:
        """The model as a user has it."""
        kind: Any = AutoModelForSpeechSeq2Seq if self.speech else AutoModelForCausalLM
        return kind.from_pretrained(self.model, dtype=DTYPES[self.precision])


def make(
    store: Path, names: list[str], wanted: str = "auto", batches: tuple[int, ...] = (1,), speech: str | None = None
) -> Confirmed:
    """Confirm the last of ``names`` that is exact, in ``batches`` too; ``speech``: the source of a model that hears."""
    environment = present(wanted)
    resolved, protocol = resolve(speech or SOURCE), _protocol(environment["precision"])
    if speech:
        protocol |= {"task": "transcribe", "windows": WINDOWS}
    if batches != (1,):
        protocol["batches"] = list(batches)
    facts = (resolved["model"], resolved["commit"], environment["device"]["id"], environment["environment"]["key"])
    key = Key(*facts, short(protocol), root=store)
    download(resolved, key.model_folder / "model", key.model_folder / "model.json")
    write_json(key.environment_folder / "environment.json", environment)
    write_json(key.folder / "protocol.json", protocol)
    folder = key.folder
    for run in (1, 2):
        out = folder / "baseline" / f"run{run}.json"
        baseline.run(folder, stage_digest("baseline"), run, "default", out)
        record = read_json(out)
        write_json(out, record | {"process": record["process"] | {"pid": run}})
    freeze.run(folder, stage_digest("freeze"), 1)
    profile.run(folder, stage_digest("profile"), names)
    for name in [*CONTROLS, *names]:
        build.run(folder, stage_digest("build", name), name)
        validate.run(folder, stage_digest("validate", name), name)
    rank.run(folder, stage_digest("rank"), names)
    with patch.object(confirm, "attempt_fresh", _attempt_here):
        confirm.run(folder, stage_digest("confirm"), 1)
    receipt.run(folder)
    return Confirmed(store, folder / "receipt.json", environment["precision"], speech is not None)


def _attempt_here(folder: Path, name: str) -> dict[str, Any]:
    out = folder / f"{name}.attempt.json"
    confirm.run_one(folder, name, out)
    attempt: dict[str, Any] = read_json(out)
    out.unlink()
    return attempt


def _protocol(precision: str) -> dict[str, Any]:
    def asked(name: str) -> dict[str, Any]:
        return {"new_tokens": _NEW_TOKENS[name], "prompts": [{"id": f"{name}/0", "seeded": 0}]}

    return {
        "dtype": precision,
        "batch": 1,
        "sampling": "greedy",
        "stop": "length",
        "rehearsal": True,
        "warmups": 0,
        "repetitions": 1,
        "timed": 0,
        "baselines": 2,
        "attention_preference": ["flash", "math"],
        "step_lengths": 64,
        "sets": {name: asked(name) for name in _NEW_TOKENS},
    }
