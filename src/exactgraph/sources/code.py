"""Code that a model brings along: refused by name, unless the configuration allows it for that model.

Without torch; transformers is asked only about a model that names code of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import orjson

from exactgraph.refusal import UserError

_CONFIGURATIONS = ("config.json", "tokenizer_config.json")


def select(place: str, present: Collection[str], read: Callable[[str], Any], allowed: bool) -> list[str]:
    """The code files that are part of the model, of those ``present`` at ``place``; ``read`` parses one of its JSON files.

    None unless ``allowed``. Without it transformers uses the architecture that it has itself, and a model whose architecture
    it does not have is refused.
    """
    values = {name: _read(place, name, read) for name in _CONFIGURATIONS if name in present}
    named = {auto: reference for value in values.values() for auto, reference in _named(value)}
    if not allowed:
        if named:
            _refuse_needed(place, values, named)
        return []
    if not named:
        raise UserError(f"{place} brings no code (no auto_map names any): leave remote_code out for it.")
    for reference in named.values():
        if "--" in reference:
            raise UserError(f"{place} takes code from another repository ({reference}), which no commit pins: it is not run.")
        if f"{reference.partition('.')[0]}.py" not in present:
            raise UserError(f"{place} lacks the file of {reference}, which its auto_map names: the model is incomplete.")
    return sorted(name for name in present if name.endswith(".py"))


def _read(place: str, name: str, read: Callable[[str], Any]) -> dict[str, Any]:
    try:
        value = read(name)
    except orjson.JSONDecodeError as error:
        raise UserError(f"{place} has a {name} that is not JSON ({error}): mend it, or choose another revision.") from error
    return value if isinstance(value, dict) else {}


def _named(value: dict[str, Any]) -> list[tuple[str, str]]:
    """Pairs of an Auto class and the class that stands for it; a tokenizer has a slow one, a fast one, or both."""
    found = value.get("auto_map")
    entries = found.items() if isinstance(found, dict) else []
    return [
        (auto, reference)
        for auto, given in entries
        for reference in (given if isinstance(given, list) else [given])
        if isinstance(reference, str)
    ]


def _refuse_needed(place: str, values: dict[str, dict[str, Any]], named: dict[str, str]) -> None:
    # Many repositories keep code for old releases beside an architecture that transformers now has itself.
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES, tokenizer_class_from_name

    model_type = values["config.json"].get("model_type")
    tokenizer = str(values.get("tokenizer_config.json", {}).get("tokenizer_class"))
    has = {
        "AutoModelForCausalLM": model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        "AutoTokenizer": model_type in TOKENIZER_MAPPING_NAMES or tokenizer_class_from_name(tokenizer) is not None,
    }
    for auto, reference in named.items():
        if not has.get(auto, True):
            raise UserError(
                f"{place} needs code from its repository (auto_map names {reference}), and such code is not run unless you "
                f"say so: read it, and if you trust it set remote_code: true for this model in config.yaml; or choose a model "
                f"that transformers has itself."
            )
