"""The interface of a candidate.

It carries both extremes: a candidate may replace single modules inside Hugging Face's own decode loop (``C022``), or hand over
a stepper that replaces the whole forward pass under our loop (``step``). It never brings a loop of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from exactgraph.capture.graph import Capturer
from exactgraph.protocol.grades import BIT_IDENTICAL

Decisions = dict[str, Any]


@dataclass(frozen=True)
class Context:
    """What a candidate may know when it plans and installs itself.

    ``budget``: how many lengths may be captured one by one. ``validated_length``: the longest sequence, in tokens, that
    validation will see; ``confirmed_length``: the longest that confirmation will see. ``batches``: the numbers of sequences
    that whole steps are captured for.
    """

    capturer: Capturer
    budget: int
    validated_length: int
    confirmed_length: int
    batches: tuple[int, ...] = (1,)


class Stepper(ABC):
    """The whole decode step, for the decode loop in :mod:`exactgraph.runtime.decode`.

    ``batches``: of how many sequences, all of one length. ``why``: a sentence, once :meth:`run` has returned None.
    """

    batches: tuple[int, ...] = (1,)
    why: str | None = None

    def serve(self, input_ids: torch.Tensor, model_kwargs: dict[str, Any]) -> None:  # noqa: B027
        """Look at a call before anything has happened: prompts, int64 ``(batch, tokens)``, and what ``generate`` prepared for
        ``forward``. Raises ``Refused`` where the call is not served.
        """

    @abstractmethod
    def eager_arguments(self, input_ids: torch.Tensor, cache: Any) -> dict[str, Any]:
        """What ``forward`` is called with for the step after ``input_ids``, int64 ``(batch, tokens)``, once :meth:`run`
        returned None and :meth:`end` gave the sequences back to ``cache``.
        """

    def receive(self, cache: Any, ids: torch.Tensor, *, own: bool) -> None:  # noqa: B027
        """Prepare for prompts ``ids``, int64 ``(batch, tokens)``, whose prefill is about to fill ``cache``.

        Where nobody but this call has the cache (``own``), a stepper may have the prefill write where its steps read.
        """

    @abstractmethod
    def begin(self, cache: Any) -> None:
        """Take over the sequences whose prefill filled ``cache``, the one that ``generate`` made."""

    @abstractmethod
    def feed(self, token: torch.Tensor) -> None:
        """``token``: what the next step is fed, int64 ``(batch, 1)``."""

    def replays(self) -> bool:
        """Whether :meth:`run` would only replay what is captured: it would capture nothing, take no memory and call nothing of
        the model. What is left of such a step is in buffers of the stepper's own, and :meth:`end` may still be told the length
        before it.
        """
        return False

    def prepare(self) -> None:  # noqa: B027
        """Find out what the next step rests on. If code of the user's runs before that step, this is called once more."""

    @abstractmethod
    def run(self) -> torch.Tensor | None:
        """One step: the logits of the next token, ``(batch, vocabulary)``.

        The result is a static buffer that the next step overwrites. None says that this step is not captured: the loop then
        takes the sequences back with :meth:`end` and goes on in eager.
        """

    @abstractmethod
    def choose(self) -> torch.Tensor:
        """Feed the next step the token with the largest logit of the last one, without the host.

        Returns it, int64 ``(batch, 1)``, in a static buffer that :meth:`feed` and the next call overwrite.
        """

    @abstractmethod
    def end(self, cache: Any, length: int) -> None:
        """Give the sequences back: append to ``cache`` what the steps since :meth:`begin` added, up to ``length`` tokens, in
        memory of its own.
        """


@dataclass
class Installation:
    """What a candidate puts into a model.

    ``forwards`` maps modules to the forward functions that stand in for theirs while a call to ``generate`` runs; outside such
    calls the model is untouched. ``arguments`` are added to each call of ``generate``. ``stepper`` asks for our decode loop.
    """

    forwards: dict[torch.nn.Module, Callable[..., Any]] = field(default_factory=dict)
    arguments: dict[str, Any] = field(default_factory=dict)
    stepper: Stepper | None = None


class Candidate(ABC):
    """A named configuration.

    ``claims`` is the grade that the construction promises; the gate rejects a candidate that promises equal bits and does not
    deliver them, even where its token IDs happen to be equal. ``control``: exists to test the gate, never to be used.
    ``timed``: whether validation repeats and measures it. ``plans``: whether there is anything to decide on the device.
    """

    id: ClassVar[str]
    claims: ClassVar[str] = BIT_IDENTICAL
    control: ClassVar[bool] = False
    timed: ClassVar[bool] = True
    plans: ClassVar[bool] = True

    def plan(self, model: Any, context: Context) -> Decisions:
        """Decide how to run on this model and device, as JSON. Raises ``Refused`` where it cannot."""
        return {}

    @abstractmethod
    def install(self, model: Any, decisions: Decisions, context: Context) -> Installation:
        """Build what ``decisions`` say. Raises ``Refused`` where that fails, and leaves nothing behind in the model."""
