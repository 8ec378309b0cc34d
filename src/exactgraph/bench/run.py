"""A whole bench: the model found, eager recorded, every candidate measured, everything in one JSON value."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exactgraph import __version__
from exactgraph.bench.locate import Located, locate
from exactgraph.bench.settings import Settings
from exactgraph.candidates.registry import MODULES, candidate
from exactgraph.refusal import UserError
from exactgraph.workflow.keys import ROOT

if TYPE_CHECKING:
    from exactgraph.bench.eager import Floor, Reference
    from exactgraph.bench.stand import Stand

_VERSIONS = ("torch", "transformers", "tokenizers", "driver", "cuda", "cublas", "cudnn", "triton")


def run(model: str, candidates: str, settings: Settings, root: Path = Path(ROOT)) -> dict[str, Any]:
    """Loaded ``candidates`` (names separated by commas) on ``model``, a folder or a source downloaded below ``root``.

    The result has the same fields on every device; where nothing was timed, figures are None. Raises ``UserError`` for what
    the user can mend.
    """
    settings.check()
    names = _names(candidates)
    located = locate(model, root)
    located.check()
    from exactgraph.bench.eager import measure_floor, record_reference
    from exactgraph.bench.rows import measure
    from exactgraph.bench.stand import open_stand

    with open_stand(located, settings) as stand:
        reference = record_reference(stand)
        floor = measure_floor(stand) if stand.timed and reference.difference is None else None
        rows = [measure(stand, reference, floor, name) for name in names]
        return _document(located, stand, reference, floor, rows)


def exit_code(result: dict[str, Any]) -> int:
    """1 where something differed, eager from itself included; 0 where nothing did."""
    differed = any(row["status"] in ("rejected", "baseline-moved") for row in result["rows"])
    return 1 if differed or not result["eager"]["reproduces"] else 0


def _names(candidates: str) -> list[str]:
    names = list(dict.fromkeys(name for part in candidates.split(",") if (name := part.strip())))
    if not names:
        raise UserError("Name at least one candidate: --candidates C022,step.")
    for name in names:
        if name not in MODULES:
            candidate(name)  # raises the sentence that lists those there are
    return names


def _document(
    located: Located, stand: Stand, reference: Reference, floor: Floor | None, rows: list[dict[str, Any]]
) -> dict[str, Any]:
    from exactgraph.bench.eager import eager_entry
    from exactgraph.canonical import digest

    settings, facts = stand.settings, stand.environment["environment"]["facts"]
    return {
        "versions": {
            "exactgraph": __version__,
            "python": platform.python_version(),
            **{name: facts[name] for name in _VERSIONS if name in facts},
        },
        "model": located.describe(),
        "device": stand.environment["device"],
        "gpu_uuid": stand.hold.uuid,
        "environment": stand.environment["environment"],
        "protocol": _protocol(stand),
        "emulated": not stand.timed,
        "floor": None if floor is None else {"copy_bytes_s": floor.bandwidth, "step_weight_bytes": floor.weight_bytes},
        "eager": {
            **eager_entry(reference, _eager_figures(rows, floor)),
            "traces_digest": digest(reference.sets),
            "attention": settings.attention,
        },
        "rows": rows,
    }


def _protocol(stand: Stand) -> dict[str, Any]:
    """Every value that this bench asked and measured with."""
    from exactgraph.bench.eager import RECORDINGS
    from exactgraph.protocol.timing import CONFIDENCE

    settings = stand.settings
    return {
        "dtype": stand.environment["precision"],
        "attention": settings.attention,
        "batch": 1,
        "sampling": "greedy",
        "stop": "length",
        "prompt_set": settings.prompt_set,
        "prompts": [{"id": asked.id, "tokens": asked.prompt_tokens, "digest": asked.digest} for asked in stand.questions],
        "new_tokens": settings.new_tokens,
        "repetitions": settings.repetitions,
        "warmups": settings.warmups,
        "step_lengths": settings.step_lengths,
        "eager_recordings": RECORDINGS,
        "confidence": CONFIDENCE,
    }


def _eager_figures(rows: list[dict[str, Any]], floor: Floor | None) -> dict[str, Any]:
    """Eager's own figures, over its timed runs beside all candidates."""
    from exactgraph.bench.rows import first_token_ms
    from exactgraph.protocol.timing import summarise

    pairs = [pair for row in rows for pair in row["pairs"] or []]
    if not pairs or floor is None:
        return {}
    rate = summarise(pairs)["eager_tok_s"]
    return {"tok_s": rate, "first_token_ms": first_token_ms(pairs, "eager"), **floor.figures(rate)}
