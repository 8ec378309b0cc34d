"""``baseline``: unmodified eager ``model.generate`` over all prompt sets, in a process of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from exactgraph.canonical import digest, write_json
from exactgraph.progress import Progress
from exactgraph.stages.loaded import Loaded, open_model
from exactgraph.stages.place import Place


def run(folder: Path, code: str, run: int, attention: str, out: Path) -> None:
    """Record one run under the backend ``attention``. A backend that cannot run the model is a result, not a failure."""
    place = Place(folder)
    with open_model(place) as loaded:
        record: dict[str, Any] = {
            "stage": "baseline",
            "code": code,
            "run": run,
            "attention": attention,
            "environment": loaded.environment,
            "weights_digest": loaded.manifest["weights_digest"],
        }
        record.update(_answers(loaded, attention))
        record["process"] = loaded.process()
    write_json(out, record)


def _answers(loaded: Loaded, attention: str) -> dict[str, Any]:
    import torch

    from exactgraph.protocol.trace import record_sets
    from exactgraph.runtime.attention import pinned
    from exactgraph.runtime.load import out_of_memory

    total = sum(len(asked) for asked in loaded.questions.values())
    try:
        with pinned(attention), Progress(f"baseline ({attention})", total) as progress:
            sets = record_sets(loaded.model.generate, loaded.questions, loaded.device, progress.step)
    except torch.OutOfMemoryError as error:
        # Says more of what else works on the GPU than of the backend, so it must not stay as a result.
        raise out_of_memory("Generating with the model") from error
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        return {"failed": {"reason": "generate-failed", "sentence": f"model.generate failed under {attention}: {said}"}}
    texts = {} if loaded.tokenizer is None else _texts(loaded.tokenizer, sets)
    return {"sets": sets, "traces_digest": digest(sets), "texts": texts}


def _texts(tokenizer: Any, sets: dict[str, list[dict[str, Any]]]) -> dict[str, str]:
    """Answers for people, cut where the model itself would have stopped."""
    texts = {}
    for traces in sets.values():
        for trace in traces:
            tokens = trace["tokens"]
            if tokenizer.eos_token_id in tokens:
                tokens = tokens[: tokens.index(tokenizer.eos_token_id)]
            texts[trace["prompt"]] = tokenizer.decode(tokens)
    return texts
