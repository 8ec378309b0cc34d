"""The configuration: its checks beyond the schema, and the protocol that it asks for.

Snakemake validates ``config.yaml`` against ``workflow/schemas/config.schema.yaml`` and fills in the defaults; functions here
take the result. Free of torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from exactgraph.canonical import digest, read_json
from exactgraph.protocol import prompts
from exactgraph.protocol.tasks import GENERATE, TRANSCRIBE
from exactgraph.refusal import UserError
from exactgraph.sources import recordings
from exactgraph.sources.own_class import code_of
from exactgraph.sources.path import TOKENIZER_FILES
from exactgraph.sources.spec import allow_code, class_of, hears, of_class, parse, slug
from exactgraph.workflow.keys import CONFIG, ROOT, Key
from exactgraph.workflow.stage_digest import candidate_modules, control_ids

# Where a run leaves the configuration it works with, defaults filled in and overrides of the command line applied.
RESOLVED = Path(ROOT) / CONFIG

Config = Mapping[str, Any]


def check_syntax(file: Path) -> None:
    """Refuse a file that is no YAML, with line and column, which Snakemake does not say. A missing one it reports."""
    if not file.is_file():
        return
    try:
        yaml.safe_load(file.read_bytes())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "somewhere"
        raise UserError(f"{file}, {where}: {error.problem}. It must be YAML: mend it there or just before.") from None
    except yaml.YAMLError as error:
        raise UserError(f"{file} is no YAML text: {str(error).replace(chr(10), ' ')}. Save it as plain UTF-8.") from None


def place(parts: Iterable[str | int]) -> str:
    """A place in the configuration as people write it: ``models[0]``, ``protocol.warmups``."""
    text = ""
    for part in parts:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text or "the top level"


def check(config: Config) -> None:
    """Refuse, with the place, what the schema cannot know.

    Unknown sources and candidates, two sources of one name, more or fewer timed runs than there can be, and batches without
    that of the baseline or of a speech model.
    """
    named: dict[str, str] = {}
    for index, entry in enumerate(config["models"]):
        try:
            spec = _spec(entry)
            name = slug(spec)
            _check_task(entry)
        except UserError as error:
            raise UserError(f"Configuration, models[{index}]: {error}") from None
        if name in named:
            raise UserError(f"Configuration, models[{index}]: {spec!r} and {named[name]!r} are the same model.")
        named[name] = spec
    try:
        slug(rehearsal_model(config))
        _check_task(config["rehearsal"]["model"])
    except UserError as error:
        raise UserError(f"Configuration, rehearsal.model: {error}") from None
    for name in prompts.SETS:
        if not prompts.load(name):
            raise UserError(f"The prompt set {name!r} is empty, so nothing would be compared: add prompts to prompts.json.")
    controls, known = control_ids(), candidate_modules()
    for index, candidate in enumerate(config["candidates"]):
        if candidate in controls:
            raise UserError(f"Configuration, candidates[{index}]: {candidate!r} is a control; those always run, leave it out.")
        if candidate not in known:
            choices = ", ".join(name for name in known if name not in controls)
            raise UserError(f"Configuration, candidates[{index}]: {candidate!r} is not a candidate. Known are {choices}.")
    timed, repetitions = config["protocol"]["timed"], config["protocol"]["repetitions"]
    if not 1 <= timed <= repetitions:
        raise UserError(
            f"Configuration, protocol.timed: it must be between 1 and protocol.repetitions ({repetitions}), not {timed}."
        )
    _check_batches(config)


def _check_batches(config: Config) -> None:
    batches = config["protocol"]["batches"]
    if 1 not in batches:
        raise UserError(
            f"Configuration, protocol.batches: 1 must be in it, because the baseline asks one prompt at a time: [1, "
            f"{', '.join(map(str, batches))}]."
        )
    for entry in [*config["models"], config["rehearsal"]["model"]]:
        if _task(entry) == TRANSCRIBE and batches != [1]:
            raise UserError(
                f"Configuration, protocol.batches: {_spec(entry)!r} is a speech model, whose windows are asked one at a time: "
                f"batches must be [1] where one is confirmed, not {batches}."
            )


def _spec(entry: str | Mapping[str, Any]) -> str:
    """The spec that an entry of ``models`` stands for: a string, or ``{"source", "remote_code", "class", "task"}``."""
    if isinstance(entry, str):
        return entry
    source: str = entry["source"]
    if "class" in entry:
        if entry.get("remote_code"):
            raise UserError(f"{source!r} is of a class of your own, so no code of its folder runs: leave remote_code out.")
        return of_class(source, entry["class"])
    return allow_code(source) if entry.get("remote_code") else source


def _task(entry: str | Mapping[str, Any]) -> str:
    return GENERATE if isinstance(entry, str) else entry.get("task", GENERATE)


def _check_task(entry: str | Mapping[str, Any]) -> None:
    """Refuse a task that a source is known not to be for; those of the hub and of folders show it when they are there."""
    source, heard = _spec(entry), hears(_spec(entry))
    if heard is True and _task(entry) != TRANSCRIBE:
        raise UserError(f"{source!r} is a speech model: write {{source: {source!r}, task: {TRANSCRIBE}}}.")
    if heard is False and _task(entry) == TRANSCRIBE:
        raise UserError(f"{source!r} is no speech model: leave task: {TRANSCRIBE} out for it.")


def task(config: Config, model: str) -> str:
    """What the model of this slug is asked to do."""
    entries = [*config["models"], config["rehearsal"]["model"]]
    return next((_task(entry) for entry in entries if slug(_spec(entry)) == model), GENERATE)


def rehearsal_model(config: Config) -> str:
    """The spec of the model of a rehearsal."""
    return _spec(config["rehearsal"]["model"])


def models(config: Config) -> list[str]:
    """The specs of the models to confirm on a GPU."""
    return [_spec(entry) for entry in config["models"]]


def sources(config: Config) -> dict[str, str]:
    """Every source that any slot could need, by slug."""
    return {slug(spec): spec for spec in [*models(config), rehearsal_model(config)]}


def wanted(config: Config, rehearsal: bool) -> list[str]:
    """The slugs of the models that a slot works on."""
    return [slug(spec) for spec in ([rehearsal_model(config)] if rehearsal else models(config))]


def all_candidates(config: Config) -> list[str]:
    """The controls, then the configured candidates."""
    return [*control_ids(), *config["candidates"]]


def has_token_ids(resolved: Mapping[str, Any]) -> bool:
    """Whether the prompts of a resolved source are seeded token ids in its folder, because it has no tokenizer."""
    files = resolved["facts"].get("files")
    if files is not None:
        return not any(name in files for name in TOKENIZER_FILES)
    return str(resolved["source"]).startswith("random:")


def protocol_for(config: Config, precision: str, rehearsal: bool, token_ids: bool, task: str = GENERATE) -> dict[str, Any]:
    """The content of ``protocol.json``: everything that says what is asked.

    ``precision`` is what the slot's probe chose; a configured one replaces it, except in a rehearsal, which is always the
    same small run. Prompts are ``{"id", "text"}`` or, for ``token_ids``, ``{"id", "seeded": place in the model's own list}``.
    Where the task is to transcribe, they are windows of a recording, ``{"id", "recording", "start", "seconds"}``, or seeded.
    Batches are named only where there are others than of one, and what is asked about windows only where the task has any, so
    that the keys of all other protocols are what they were.
    """
    asked = config["rehearsal"] if rehearsal else config["protocol"]
    fixed = config["precision"]
    new_tokens = {"heldout": asked["new_tokens"], "confirm": asked["new_tokens"], "long": asked["long_run"]}
    transcribes = task == TRANSCRIBE
    batches = sorted(config["protocol"]["batches"])
    if transcribes and not token_ids:
        new_tokens = {name: min(tokens, recordings.LONGEST_ANSWER) for name, tokens in new_tokens.items()}
    load: Callable[[str], Sequence[Mapping[str, Any]]] = recordings.windows if transcribes else prompts.load
    return {
        **({"task": TRANSCRIBE, "windows": dict(asked["windows"])} if transcribes else {}),
        "dtype": precision if rehearsal or fixed == "auto" else fixed,
        "batch": 1,
        **({} if batches == [1] else {"batches": batches}),
        "sampling": "greedy",
        "stop": "length",
        "rehearsal": rehearsal,
        "warmups": asked["warmups"],
        "repetitions": asked["repetitions"],
        "timed": 0 if rehearsal else asked["timed"],
        "baselines": config["protocol"]["baselines"],
        "attention_preference": list(config["attention_preference"]),
        "step_lengths": asked["step_lengths"],
        "sets": {
            name: {"new_tokens": tokens, "prompts": _prompts(load(name)[: asked.get("prompts")], token_ids)}
            for name, tokens in new_tokens.items()
        },
    }


def _prompts(asked: Sequence[Mapping[str, Any]], token_ids: bool) -> list[dict[str, Any]]:
    if not token_ids:
        return [dict(prompt) for prompt in asked]
    return [{"id": prompt["id"], "seeded": index} for index, prompt in enumerate(asked)]


def protocol_of(key: Key, config: Config) -> dict[str, Any]:
    """The protocol of a key's folder, from the files that its environment and source left beside it."""
    environment = read_json(key.environment_folder / "environment.json")
    rehearsal = environment["device"]["kind"] == "cpu"
    resolved = read_json(key.resolved)
    return protocol_for(config, environment["precision"], rehearsal, has_token_ids(resolved), task(config, key.model))


def source_signature(spec: str) -> str:
    """What a look shows of a change: names, sizes and times of a ``path:`` source's files, and the code of a user's class."""
    own, folder = class_of(spec), getattr(parse(spec), "folder", None)
    return " ".join(part for part in (_folder_signature(folder), own and _code_signature(own)) if part)


def _code_signature(own: str) -> str:
    try:
        return digest(code_of(own))
    except UserError as error:
        return str(error)


def _folder_signature(folder: Path | None) -> str:
    if folder is None:
        return ""
    try:
        entries = [(entry, entry.stat()) for entry in sorted(folder.iterdir()) if entry.is_file()]
    except OSError as error:
        # The stage reports it in its own words; here it is only a state that differs from having the folder.
        return str(error)
    return " ".join(f"{entry.name}:{stat.st_size}:{stat.st_mtime_ns}" for entry, stat in entries)
