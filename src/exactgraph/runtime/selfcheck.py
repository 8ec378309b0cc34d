"""The installed plan answers the first steps of a recorded prompt, and must give the baseline's bits.

The receipt was proved in other processes; this shows that what was installed here does the same before anybody relies on it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from exactgraph.protocol.grades import BIT_IDENTICAL
from exactgraph.protocol.questions import Question, questions
from exactgraph.protocol.tasks import stop_at_length
from exactgraph.protocol.trace import record
from exactgraph.refusal import UserError
from exactgraph.runtime.load import load_tokenizer
from exactgraph.runtime.not_optimized import NotOptimized
from exactgraph.runtime.session import Session
from exactgraph.stages.place import Place

_STEPS = 4
_SET = "heldout"
_SLUG = "self-check"


def first_question(place: Place, model: Any) -> Question:
    """The first held-out prompt for this model. Evidence holds a digest of it; the prompt comes from a model's folder."""
    protocol = place.protocol()
    asked = protocol["sets"][_SET]
    first = asked["prompts"][0]
    alone = {**protocol, "sets": {_SET: {**asked, "prompts": [first]}}}
    wanted = place.frozen()["sets"][_SET][0]["prompt_digest"]
    for folder in (place.model_dir, Path(model.config._name_or_path)):
        try:
            tokenizer = load_tokenizer(folder) if "text" in first else None
            (question,) = questions(alone, folder, tokenizer, model)[_SET]
        except (UserError, OSError):
            continue
        if question.digest == wanted:
            return question
    raise NotOptimized(
        _SLUG,
        f"The plan could not be checked: neither {place.model_dir} nor {model.config._name_or_path!r} has the tokenizer or "
        f"the prompts that the baseline was recorded with. Give the folder of artifacts, which holds them.",
    )


def self_check(session: Session, question: Question, frozen: dict[str, Any], grade: str) -> None:
    """Raise ``NotOptimized`` where the first steps are not the baseline's, or were not the candidate's doing."""
    expected = frozen["sets"][_SET][0]
    steps = min(_STEPS, len(expected["tokens"]))
    with _as_recorded(session.model):
        try:
            found = record(session.generate, replace(question, new_tokens=steps), session.model.device)
        except RuntimeError as error:
            raise NotOptimized(_SLUG, f"The installed plan died in its first call: {error}.") from error
    why = session.served_by_eager()
    if why is not None:
        raise NotOptimized(_SLUG, f"The installed plan did not serve its first call: {why}")
    kind = "logits" if grade == BIT_IDENTICAL else "tokens"
    for step in range(steps):
        if found[kind][step : step + 1] != expected[kind][step : step + 1]:
            raise NotOptimized(
                _SLUG,
                f"The installed plan left the recorded baseline at prompt {expected['prompt']}, step {step} ({kind}). "
                f"Run the workflow again (snakemake --cores 1 confirm), and report it if the receipt then says optimized.",
            )
    session.clear()


@contextmanager
def _as_recorded(model: Any) -> Iterator[None]:
    """Baselines stop at their length only. The user's own configuration of generation is untouched by it."""
    own = model.generation_config
    model.generation_config = copy.deepcopy(own)
    stop_at_length(model)
    try:
        yield
    finally:
        model.generation_config = own
