"""Greedy decoding that the host does not wait for.

Each step chooses its token on the device and feeds it to the next. Where a token may end the sequence, the host looks at it
one step late, while the next step runs; what that step made is thrown away.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria

from exactgraph.candidates.base import Stepper
from exactgraph.runtime.answer import Answer
from exactgraph.runtime.suppressed import Suppressed


class Stops:
    """Known stopping rules. ``limit``: how many tokens the sequence may become long; ``ends``: token IDs that end it."""

    def __init__(self, limit: int, ends: frozenset[int]) -> None:
        self.limit = limit
        self.ends = ends

    @classmethod
    def known(cls, criteria: Any) -> Stops | None:
        """The rules behind ``criteria``, or None where there is one that has to be asked on the host after each step."""
        limit, ends = None, frozenset[int]()
        for rule in criteria:
            if type(rule) is MaxLengthCriteria:
                limit = rule.max_length if limit is None else min(limit, rule.max_length)
            elif type(rule) is EosTokenCriteria:
                ends |= frozenset(rule.eos_token_id.reshape(-1).tolist())
            else:
                return None
        return None if limit is None else cls(limit, ends)


def decode_greedily(stepper: Stepper, answer: Answer, stops: Stops, suppressed: Suppressed) -> bool:
    """Continue ``answer``, whose first token is chosen, for one sequence. Returns whether it is finished.

    ``suppressed``: tokens that may not be chosen. Where a step is not captured the sequence is not finished, and the token
    that was chosen last has still to be fed.
    """
    first = answer.ids[:, -1:]
    tokens = [first]
    watch = _Watch(first.device, stops.ends)
    watch.look(first)
    stepper.feed(first)
    begun = answer.ids.shape[1]
    room = stops.limit - begun
    finished = overrun = False
    for _ in range(room):
        logits = stepper.run()
        if logits is None:
            break
        if not suppressed.rules:
            answer.keep_raw(logits)
            token = stepper.choose().clone()
        else:
            raw = answer.copied(logits)
            scores = suppressed(raw, begun + len(tokens) - 1)
            answer.keep(raw, scores)
            token = scores.argmax(dim=-1)[:, None]
            stepper.feed(token)
        tokens.append(token)
        watch.look(token)
        if watch.before():
            finished = overrun = True
            break
    if not finished:
        finished = watch.last() or len(tokens) > room
    answer.append(torch.cat(tokens[1:], dim=-1) if len(tokens) > 1 else first[:, :0])
    if overrun:
        answer.drop_last()
    return finished


class _Watch:
    """Tells whether a token ends the sequence, without waiting for the newest."""

    def __init__(self, device: torch.device, ends: frozenset[int]) -> None:
        self._ends = ends
        self._cuda = device.type == "cuda"
        # Two in turn: while one is read, the next token may already be written.
        self._slots = deque(self._slot() for _ in range(2))
        self._looked = 0

    def _slot(self) -> tuple[torch.Tensor, torch.cuda.Event | None]:
        slot = torch.empty((1, 1), dtype=torch.int64, device="cpu", pin_memory=self._cuda)
        return slot, torch.cuda.Event() if self._cuda else None

    def look(self, token: torch.Tensor) -> None:
        """Have ``token``, int64 ``(1, 1)``, brought to the host as soon as it is there."""
        if not self._ends:
            return
        self._slots.rotate()
        slot, arrived = self._slots[0]
        slot.copy_(token, non_blocking=True)
        if arrived is not None:
            arrived.record()
        self._looked += 1

    def before(self) -> bool:
        """Whether the token before the newest ends the sequence."""
        return self._looked > 1 and self._ended(1)

    def last(self) -> bool:
        """Whether the newest token does."""
        return self._looked > 0 and self._ended(0)

    def _ended(self, back: int) -> bool:
        slot, arrived = self._slots[back]
        if arrived is not None:
            arrived.synchronize()
        return int(slot) in self._ends
