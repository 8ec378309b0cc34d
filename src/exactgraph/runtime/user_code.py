"""Code of the user's own that runs between the steps of a call, and a look at the model after it.

A processor, a criterion or a streamer may do anything: replace weights, attach an adapter, enter autocast. What transformers
brings itself does nothing of the kind, so calls without code of the user's own are looked at once and no more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from transformers import PrefixConstrainedLogitsProcessor, StoppingCriteria, StoppingCriteriaList

_LIBRARY = "transformers"
_OURS = "exactgraph"
_PLACES = ("logits_processor", "stopping_criteria", "prefix_allowed_tokens_fn", "streamer")


def given_user_code(arguments: dict[str, Any]) -> bool:
    """Whether ``arguments`` of ``generate`` bring code of the user's own into the call."""
    return runs_user_code(*(arguments.get(name) for name in _PLACES))


def runs_user_code(*parts: Any) -> bool:
    """Whether one of ``parts`` (processors, criteria and their lists, streamers, functions, None) is not transformers' own."""
    return any(_of_user(part) for part in parts if part is not None)


def _of_user(part: Any) -> bool:
    library = type(part).__module__.partition(".")[0]
    if library == _OURS:
        # Ours do nothing of the kind either, but what is put into them may.
        return runs_user_code(*getattr(part, "processors", ()))
    if library != _LIBRARY:
        # An ordinary list is no code.
        return type(part) not in (list, tuple) or runs_user_code(*part)
    if isinstance(part, PrefixConstrainedLogitsProcessor):  # it calls a function of the user's
        return True
    if isinstance(part, list) and runs_user_code(*part):
        return True
    # A method replaced on the instance; transformers keeps none but tokenizers and models there.
    return any(callable(value) and name in dir(type(part)) for name, value in vars(part).items())


def watched(arguments: dict[str, Any], look: Callable[[], object]) -> dict[str, Any]:
    """``arguments`` of ``generate`` such that ``look`` runs after every piece of the user's own code, before the next step.

    Unchanged where there is none. Criteria run after processors, streamers after criteria: one last criterion and one streamer
    see all of it.
    """
    if not given_user_code(arguments):
        return arguments
    criteria: Iterable[Any] = arguments.get("stopping_criteria") or ()
    streamer = arguments.get("streamer")
    return {
        **arguments,
        "stopping_criteria": StoppingCriteriaList([*criteria, _Criterion(look)]),
        "streamer": None if streamer is None else _Streamer(streamer, look),
    }


class _Criterion(StoppingCriteria):
    """Looks, and never stops."""

    def __init__(self, look: Callable[[], object]) -> None:
        self._look = look

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> Any:
        """``input_ids`` int64 ``(sequences, tokens)``; returns ``(sequences,)`` of False."""
        self._look()
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)


class _Streamer:
    """A streamer of the user's, after which somebody looks."""

    def __init__(self, streamer: Any, look: Callable[[], object]) -> None:
        self._streamer = streamer
        self._look = look

    def put(self, value: torch.Tensor) -> None:
        self._streamer.put(value)
        self._look()

    def end(self) -> None:
        self._streamer.end()
