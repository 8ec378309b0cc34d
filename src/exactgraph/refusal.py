"""What exactgraph says when it will not do something: typed values with a sentence for a person."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Refusal:
    """Why something is not done.

    ``reason`` is a stable slug that programs compare (``moe-routing-synchronises``); ``sentence`` is for people.
    """

    reason: str
    sentence: str

    def to_json(self) -> dict[str, str]:
        return {"reason": self.reason, "sentence": self.sentence}


class Refused(Exception):
    """Raised where a refusal has to leave a call stack; carries the :class:`Refusal`."""

    def __init__(self, reason: str, sentence: str) -> None:
        super().__init__(sentence)
        self.refusal = Refusal(reason, sentence)


class UserError(Exception):
    """Something the user can mend. The message says what was wrong, where, and what to do; the command line prints it
    without a traceback and exits with 2."""
