"""Does a receipt speak of this model in this process? Everything but the weights, which cost more to compare."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from exactgraph.refusal import Refusal, UserError
from exactgraph.runtime.here import Here
from exactgraph.sources import own_class
from exactgraph.workflow.stage_digest import stage_digest

AGAIN = "Run the workflow here: snakemake --cores 1 confirm."
_SHOWN = 4  # facts that differ; the first few say which of driver, library or flag it is


def differences(path: Path, predicate: dict[str, Any], model: Any, here: Here) -> list[Refusal]:
    """Why the receipt's plan must not run in ``model`` here, most telling first; empty where nothing speaks against it."""
    return list(_differences(path, predicate, model, here))


def _differences(path: Path, predicate: dict[str, Any], model: Any, here: Here) -> Iterator[Refusal]:
    device, precision = predicate["device"]["id"], predicate["precision"]
    if device != here.device:
        yield Refusal("other-device", f"The receipt {path} is of {device}, and the model is on {here.device}. {AGAIN}")
    wanted = "rehearsal" if predicate["device"]["kind"] == "cpu" else "optimized"
    if predicate["status"] != wanted:
        sentence = f"The receipt {path} says {predicate['status']}: {predicate['sentence']} exactgraph table {path} has more."
        yield Refusal("not-optimized", sentence)
    if precision != here.precision:
        sentence = f"The receipt {path} is of {precision}, and the model is in {model.dtype}: load it with dtype={precision}."
        yield Refusal("other-precision", sentence)
    facts = _facts(predicate["environment"]["facts"], here.facts)
    if facts:
        shown = "; ".join(facts[:_SHOWN]) + (f"; {len(facts) - _SHOWN} more" if len(facts) > _SHOWN else "")
        sentence = f"The receipt {path} was made in another environment: {shown}. Bring that back, or else: {AGAIN}"
        yield Refusal("other-environment", sentence)
    yield from _model(path, predicate, model)
    yield from _code(path, predicate)


def _facts(then: dict[str, str], now: dict[str, str]) -> list[str]:
    return [
        f"{name} was {then.get(name, 'unset')} and is {now.get(name, 'unset')}"
        for name in sorted({*then, *now})
        if then.get(name) != now.get(name)
    ]


def _model(path: Path, predicate: dict[str, Any], model: Any) -> Iterator[Refusal]:
    described = predicate["model"]
    if described["architecture"] != type(model).__name__:
        sentence = (
            f"The receipt {path} is of a {described['architecture']}, and the model is a {type(model).__name__}. {AGAIN}"
        )
        yield Refusal("other-model", sentence)
    if "code" in described and _own_code(model) != sorted(described["code"].values()):
        sentence = f"The receipt {path} is of other code of the class {type(model).__name__} than this model runs. {AGAIN}"
        yield Refusal("other-model", sentence)
    # Of other sources, and of a mirror of this one, the weights alone can tell.
    repository, _, _ = described["source"].removeprefix("hub:").partition("@")
    loaded = getattr(model.config, "_commit_hash", None)
    if model.config._name_or_path == repository and loaded and not loaded.startswith(described["commit"]):
        sentence = (
            f"The receipt {path} is of revision {described['commit']}, and the model is {loaded[:12]}: load that revision."
        )
        yield Refusal("other-revision", sentence)
    usual = "sdpa" if getattr(model, "_supports_sdpa", False) else "eager"
    if model.config._attn_implementation != usual:
        sentence = f"The receipt {path} is of attention {usual}, and the model has {model.config._attn_implementation}."
        yield Refusal("other-attention", f"{sentence} model.set_attn_implementation({usual!r}) changes it.")
    if model.training:
        yield Refusal("training", "The model is in training mode: model.eval() changes it.")


def _own_code(model: Any) -> list[str] | None:
    """SHA-256 of the files that the class of ``model`` lies in, sorted; None where it lies in none."""
    kind = type(model)
    try:
        return sorted(own_class.code_of(f"{kind.__module__}:{kind.__name__}").values())
    except UserError:
        return None


def _code(path: Path, predicate: dict[str, Any]) -> Iterator[Refusal]:
    """Whether this exactgraph runs the code that was confirmed."""
    name = predicate["confirmation"]["confirmed"]
    if name is None:
        return
    found = predicate["candidates"][name]
    for stage, recorded in (("build", found["plan"]["code"]), ("validate", found["validation"]["code"])):
        if stage_digest(stage, name) != recorded:
            sentence = f"The receipt {path} was made by another exactgraph, in which {name} had other code. {AGAIN}"
            yield Refusal("other-code", sentence)
            return
