"""The JSON Schema of receipts (``receipt.schema.json``, draft 2020-12) and the check against it."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

import orjson
from jsonschema import Draft202012Validator


@cache
def validator() -> Draft202012Validator:
    """The compiled schema."""
    schema = orjson.loads(resources.files("exactgraph.receipts").joinpath("receipt.schema.json").read_bytes())
    return Draft202012Validator(schema)


def problems(statement: Any) -> list[str]:
    """What is wrong with a receipt, one sentence part each; empty where it conforms."""
    found = sorted(validator().iter_errors(statement), key=lambda error: list(map(str, error.absolute_path)))
    return [f"{'/'.join(map(str, error.absolute_path)) or 'the whole'}: {error.message[:200]}" for error in found]
