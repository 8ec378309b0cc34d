"""Post-attention norm and MLP of a layer as one graph, under the two modules' own names.

The layer takes its residual before the norm, so for one token the norm's stand-in may pass the hidden state on untouched and
leave the norm to the graph that the MLP's stand-in replays: it runs once.
"""

from __future__ import annotations

import torch

from exactgraph.candidates.one_token import Forwards, OneToken
from exactgraph.capture.graph import Capturer
from exactgraph.models.layout import Block
from exactgraph.refusal import Refused


class NormMlp:
    """Stand-ins for the two modules of one layer; hidden ``(batch, tokens, hidden)`` in and out."""

    def __init__(self, block: Block, hidden_size: int, capturer: Capturer) -> None:
        norm, mlp = block.post_norm.forward, block.mlp.forward
        self._norm, self._mlp = norm, mlp
        like = next(block.mlp.parameters())
        self._token = OneToken(lambda hidden: (mlp(norm(hidden)),), like, hidden_size, capturer)
        self._passed: torch.Tensor | None = None
        self.forwards: Forwards = {block.post_norm: self._pass, block.mlp: self._replay}

    def _pass(self, hidden: torch.Tensor) -> torch.Tensor:
        if self._token.serves(hidden):
            self._passed = hidden
            return hidden
        self._passed = None
        result: torch.Tensor = self._norm(hidden)
        return result

    def _replay(self, hidden: torch.Tensor) -> torch.Tensor:
        """The static output of the graph, which the residual addition reads before the next replay."""
        if not self._token.serves(hidden):
            result: torch.Tensor = self._mlp(hidden)
            return result
        passed, self._passed = self._passed, None
        # Anything else may have been normalised already, and the graph would do so again.
        if hidden is not passed:
            raise Refused("mlp-input", "The MLP was called with something other than what the norm before it passed on.")
        (static_output,) = self._token(hidden)
        return static_output
