"""How the next tokens of a call are chosen, and when it is finished: by what transformers made of its arguments."""

from __future__ import annotations

from typing import Any

import torch

from exactgraph.runtime.answer import Answer
from exactgraph.runtime.greedy import Stops
from exactgraph.runtime.suppressed import Suppressed


class Rules:
    """Processors, the choice and the stopping criteria of one call, in the order of transformers' own sampling loop.

    ``suppressed``: all that the processors do, where they only forbid tokens; None where there are others.
    """

    def __init__(self, processors: Any, criteria: Any, config: Any, ids: torch.Tensor) -> None:
        self._processors = processors
        self.suppressed = Suppressed.known(processors)
        self._criteria = criteria
        self._do_sample = config.do_sample
        self._unfinished = torch.ones(ids.shape[0], dtype=torch.int64, device=ids.device)
        # Only where a token may end a sequence before the others end; of one sequence nothing is padded.
        ends = ids.shape[0] > 1 and any(hasattr(rule, "eos_token_id") for rule in criteria)
        self._padding = config._pad_token_tensor.to(ids.device) if ends else None

    def on_device(self) -> Stops | None:
        """The stopping rules, where choosing and stopping need nobody's Python; else None."""
        if self._do_sample or self.suppressed is None or self._unfinished.shape[0] > 1:
            return None
        return Stops.known(self._criteria)

    def choose(self, logits: torch.Tensor, answer: Answer) -> torch.Tensor:
        """Append to ``answer`` what follows from ``logits``, ``(batch, vocabulary)``, and return it: int64 ``(batch,)``."""
        own = answer.copied(logits)
        scores = self._processors(answer.ids, own)
        answer.keep(own, scores)
        tokens = _choose(scores, self._do_sample)
        if self._padding is not None:
            tokens = tokens * self._unfinished + self._padding * (1 - self._unfinished)
        answer.append(tokens[:, None])
        return tokens

    def finished(self, answer: Answer) -> torch.Tensor:
        """Ask the stopping criteria whether all sequences are at their end: bool ``()``, on the device."""
        self._unfinished = self._unfinished & ~self._criteria(answer.ids, answer.scores)
        return self._unfinished.max() == 0


def _choose(scores: torch.Tensor, do_sample: bool) -> torch.Tensor:
    if do_sample:
        return torch.multinomial(torch.nn.functional.softmax(scores, dim=-1), num_samples=1).squeeze(1)
    return torch.argmax(scores, dim=-1)
