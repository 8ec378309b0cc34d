"""What a bench is asked to do. Free of torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from exactgraph.protocol import prompts
from exactgraph.protocol.tasks import TRANSCRIBE
from exactgraph.refusal import UserError


@dataclass(frozen=True)
class Settings:
    """``new_tokens`` a prompt; ``warmups`` and ``repetitions`` count runs; ``step_lengths`` lengths a step may capture."""

    dtype: str = "auto"
    attention: str = "default"
    prompt_set: str = "heldout"
    new_tokens: int = 64
    repetitions: int = 3
    warmups: int = 1
    step_lengths: int = 256

    def check(self) -> None:
        """Raises ``UserError`` where a value makes no sense."""
        if self.prompt_set not in prompts.SETS:
            raise UserError(f"There is no prompt set {self.prompt_set!r}. Known are {', '.join(prompts.SETS)}.")
        # A decode rate needs a token after the first.
        for name, least in (("new_tokens", 2), ("repetitions", 1), ("warmups", 0), ("step_lengths", 1)):
            if getattr(self, name) < least:
                raise UserError(f"--{name.replace('_', '-')} is {getattr(self, name)}; it must be at least {least}.")

    def protocol(self, precision: str, windows: bool) -> dict[str, Any]:
        """What is asked, in the words of ``protocol.json``; ``windows``: a speech model is asked for transcripts."""
        asked = {"new_tokens": self.new_tokens, "prompts": prompts.load(self.prompt_set)}
        task = {"task": TRANSCRIBE} if windows else {}
        return {**task, "dtype": precision, "sets": {self.prompt_set: asked}}
