"""What a program hears where its model stays eager."""

from __future__ import annotations

from exactgraph.refusal import Refusal, Refused


class NotOptimized(Refused):
    """A model was not optimised. ``refusal`` has a stable reason, and a sentence that says what differs and what mends it."""

    @classmethod
    def of(cls, refusal: Refusal) -> NotOptimized:
        return cls(refusal.reason, refusal.sentence)


class NotOptimizedWarning(UserWarning):
    """The same as a warning, where the program asked for no error; also where what is installed cannot be faster."""
