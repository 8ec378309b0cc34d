"""Input norm and the projections Q, K and V of a layer as one graph, under the four modules' own names.

The norm's stand-in passes the hidden state on, the stand-in of Q replays the graph, and each projection's stand-in hands out
its part. That is right only for one order of calls on one hidden state, so every call is checked and a wrong one is refused.
"""

from __future__ import annotations

import functools

import torch

from exactgraph.candidates.lending import Lending
from exactgraph.candidates.one_token import Forwards, OneToken
from exactgraph.capture.graph import Capturer
from exactgraph.models.layout import Block
from exactgraph.refusal import Refused

_NAMES = ("query", "key", "value")


class GroupedQKV:
    """Stand-ins for the four modules of one layer; hidden ``(batch, tokens, hidden)`` in, projections out.

    ``shared_norm``: whether other shapes than one token are normalised once for the three projections, as in the untouched
    layer, or before each of them, as the published study's first version did.
    """

    def __init__(self, block: Block, hidden_size: int, capturer: Capturer, lending: Lending, *, shared_norm: bool) -> None:
        norm = block.input_norm.forward
        projections = (block.q.forward, block.k.forward, block.v.forward)

        def work(hidden: torch.Tensor) -> tuple[torch.Tensor, ...]:
            normalised = norm(hidden)
            return tuple(projection(normalised) for projection in projections)

        self._norm, self._projections = norm, projections
        self._token = OneToken(work, block.q.weight, hidden_size, capturer)
        self._lending = lending
        self._shared_norm = shared_norm
        # What the norm passed on and which projection is due: None and 0 outside a round.
        self._passed: torch.Tensor | None = None
        self._due = 0
        self._outputs: tuple[torch.Tensor, ...] = ()
        self.forwards: Forwards = {block.input_norm: self._begin}
        for index, module in enumerate((block.q, block.k, block.v)):
            self.forwards[module] = functools.partial(self._project, index)

    def _begin(self, hidden: torch.Tensor) -> torch.Tensor:
        """The norm. It begins a round even where the last was not finished: an error may have ended that one."""
        self._end()
        if self._shared_norm and not self._token.serves(hidden):
            result: torch.Tensor = self._norm(hidden)
            return result
        self._passed = hidden
        return hidden

    def _project(self, index: int, hidden: torch.Tensor) -> torch.Tensor:
        serves = self._token.serves(hidden)
        if self._shared_norm and self._passed is None and not serves:
            result: torch.Tensor = self._projections[index](hidden)
            return result
        self._check(index, hidden)
        if not serves:
            output: torch.Tensor = self._projections[index](self._norm(hidden))
        else:
            if index == 0:
                self._outputs = self._token(hidden)
            output = self._outputs[index] if self._lending.lends else self._outputs[index].clone()
        self._due = index + 1
        if self._due == len(_NAMES):
            self._end()
        return output

    def _check(self, index: int, hidden: torch.Tensor) -> None:
        """Refuse any call but the next one of a round, on the hidden state of the round."""
        passed, due = self._passed, self._due
        if passed is not None and hidden is passed and index == due:
            return
        self._end()
        called = f"The {_NAMES[index]} projection was called"
        if passed is None:
            raise Refused("projection-order", f"{called} before the norm that it needs, or once more.")
        if index != due:
            raise Refused("projection-order", f"{called} where the {_NAMES[due]} projection was due.")
        raise Refused("projection-input", f"{called} with something other than what the norm passed on.")

    def _end(self) -> None:
        # A prompt's hidden states must not live on here until the next call.
        self._passed, self._due, self._outputs = None, 0, ()
