"""``profile``: where the time of eager's decode step goes, what each candidate can touch of it, and which cannot matter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from exactgraph.candidates.touches import TOUCHES
from exactgraph.canonical import write_json
from exactgraph.protocol.compare import first_tokens, token_difference
from exactgraph.refusal import Refused
from exactgraph.stages.loaded import Loaded, open_model
from exactgraph.stages.place import Place
from exactgraph.workflow.handoff import skips_of

Result = dict[str, Any]
_SET = "heldout"


def run(folder: Path, code: str, names: list[str]) -> None:
    """Write ``profile.json``, and ``skips.json`` for the builds. ``names`` are the configured candidates, no controls."""
    place = Place(folder)
    result: Result = {
        "stage": "profile",
        "code": code,
        "status": "skipped",
        "why": "There is no baseline to profile.",
        "attention": None,
        "prompt": None,
        "steps": 0,
        "step_ms": None,
        "gpu": None,
        "kinds": {},
        "reach": {},
        "order": names,
        "skip": {},
        "process": None,
    }
    if place.frozen()["status"] == "frozen":
        with open_model(place) as loaded:
            result |= _profile(loaded, names)
            result["process"] = loaded.process()
    write_json(folder / "skips.json", skips_of(result))
    write_json(folder / "profile.json", result)


def _profile(loaded: Loaded, names: list[str]) -> Result:
    from exactgraph.profile.reach import order, reach, skips
    from exactgraph.profile.step import figures, record_eager, step_ms
    from exactgraph.runtime.attention import pinned

    frozen = loaded.place.frozen()
    question, expected = loaded.questions[_SET][0], frozen["sets"][_SET][0]
    try:
        with pinned(frozen["attention"]), loaded.hold.alone():
            recording = record_eager(loaded.model, question, loaded.device)
            answers, measured = [recording.tokens], None
            if not loaded.protocol["rehearsal"]:
                timed, measured = step_ms(loaded.model.generate, question, loaded.device)
                answers += timed
    except Refused as refused:
        return {"status": "failed", "why": refused.refusal.sentence}
    except RuntimeError as error:
        # A profile that fails costs order and skips, nothing more: the ladder goes on.
        return {"status": "failed", "why": f"{type(error).__name__}: {error}"}
    for tokens in answers:
        difference = token_difference(first_tokens(expected, len(tokens)), tokens)
        if difference is not None:
            sentence = f"Eager left its own baseline at {difference['prompt']}, step {difference['step']}."
            return {"status": "baseline-moved", "why": sentence}
    found, step = figures(loaded.model, recording, measured)
    reaches = {name: reach(step, TOUCHES[name]) for name in names}
    return {
        "status": "profiled",
        "why": None,
        "attention": frozen["attention"],
        "prompt": question.id,
        **found,
        "reach": reaches,
        "order": order(reaches),
        "skip": skips(reaches),
    }
