"""The configuration: its checks beyond the schema, and the protocol that it asks for.

Snakemake validates ``config.yaml`` against ``workflow/schemas/config.schema.yaml`` and fills in the defaults; functions here
take the result. Free of torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from exactgraph.canonical import read_json
from exactgraph.protocol import prompts
from exactgraph.refusal import UserError
from exactgraph.sources.path import TOKENIZER_FILES
from exactgraph.sources.spec import parse, slug
from exactgraph.workflow.keys import ROOT, Key
from exactgraph.workflow.stage_digest import candidate_modules, control_ids

# Where a run leaves the configuration it works with, defaults filled in and overrides of the command line applied.
RESOLVED = Path(ROOT) / "config.json"

Config = Mapping[str, Any]


def place(parts: Iterable[str | int]) -> str:
    """A place in the configuration as people write it: ``models[0]``, ``protocol.warmups``."""
    text = ""
    for part in parts:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text or "the top level"


def check(config: Config) -> None:
    """Refuse, with the place, what the schema cannot know: unknown sources and candidates, and two sources of one name."""
    named: dict[str, str] = {}
    for index, spec in enumerate(config["models"]):
        name = _slug(spec, ["models", index])
        if name in named:
            raise UserError(f"Configuration, models[{index}]: {spec!r} and {named[name]!r} are the same model.")
        named[name] = spec
    _slug(config["rehearsal"]["model"], ["rehearsal", "model"])
    controls, known = control_ids(), candidate_modules()
    for index, candidate in enumerate(config["candidates"]):
        if candidate in controls:
            raise UserError(f"Configuration, candidates[{index}]: {candidate!r} is a control; those always run, leave it out.")
        if candidate not in known:
            choices = ", ".join(name for name in known if name not in controls)
            raise UserError(f"Configuration, candidates[{index}]: {candidate!r} is not a candidate. Known are {choices}.")


def _slug(spec: str, where: list[str | int]) -> str:
    try:
        return slug(spec)
    except UserError as error:
        raise UserError(f"Configuration, {place(where)}: {error}") from None


def sources(config: Config) -> dict[str, str]:
    """Every source that any slot could need, by slug."""
    return {slug(spec): spec for spec in [*config["models"], config["rehearsal"]["model"]]}


def wanted(config: Config, rehearsal: bool) -> list[str]:
    """The slugs of the models that a slot works on."""
    return [slug(spec) for spec in ([config["rehearsal"]["model"]] if rehearsal else config["models"])]


def all_candidates(config: Config) -> list[str]:
    """The controls, then the configured candidates."""
    return [*control_ids(), *config["candidates"]]


def has_token_ids(resolved: Mapping[str, Any]) -> bool:
    """Whether the prompts of a resolved source are seeded token ids in its folder, because it has no tokenizer."""
    files = resolved["facts"].get("files")
    if files is not None:
        return not any(name in files for name in TOKENIZER_FILES)
    return str(resolved["source"]).startswith("random:")


def protocol_for(config: Config, precision: str, rehearsal: bool, token_ids: bool) -> dict[str, Any]:
    """The content of ``protocol.json``: everything that says what is asked.

    ``precision`` is what the slot's probe chose; a configured one replaces it, except in a rehearsal, which is always the
    same small run. Prompts are ``{"id", "text"}`` or, for ``token_ids``, ``{"id", "seeded": place in the model's own list}``.
    """
    asked = config["rehearsal"] if rehearsal else config["protocol"]
    fixed = config["precision"]
    new_tokens = {"heldout": asked["new_tokens"], "confirm": asked["new_tokens"], "long": asked["long_run"]}
    return {
        "dtype": precision if rehearsal or fixed == "auto" else fixed,
        "batch": 1,
        "sampling": "greedy",
        "stop": "length",
        "rehearsal": rehearsal,
        "warmups": asked["warmups"],
        "repetitions": asked["repetitions"],
        "baselines": config["protocol"]["baselines"],
        "attention_preference": list(config["attention_preference"]),
        "step_lengths": asked["step_lengths"],
        "sets": {
            name: {"new_tokens": tokens, "prompts": _prompts(name, asked.get("prompts"), token_ids)}
            for name, tokens in new_tokens.items()
        },
    }


def _prompts(name: str, first: int | None, token_ids: bool) -> list[dict[str, Any]]:
    texts = prompts.load(name)[:first]
    if not token_ids:
        return [dict(prompt) for prompt in texts]
    return [{"id": prompt["id"], "seeded": index} for index, prompt in enumerate(texts)]


def protocol_of(key: Key, config: Config) -> dict[str, Any]:
    """The protocol of a key's folder, from the files that its environment and source left beside it."""
    environment = read_json(key.environment_folder / "environment.json")
    rehearsal = environment["device"]["kind"] == "cpu"
    return protocol_for(config, environment["precision"], rehearsal, has_token_ids(read_json(key.resolved)))


def folder_signature(spec: str) -> str:
    """For ``path:`` sources what a look at the folder shows of a change (names, sizes, times); empty for the others."""
    folder = getattr(parse(spec), "folder", None)
    if folder is None:
        return ""
    try:
        entries = [(entry, entry.stat()) for entry in sorted(folder.iterdir()) if entry.is_file()]
    except OSError as error:
        # The stage reports it in its own words; here it is only a state that differs from having the folder.
        return str(error)
    return " ".join(f"{entry.name}:{stat.st_size}:{stat.st_mtime_ns}" for entry, stat in entries)
