"""Windows of a speech model in the user's own program, by the way that a receipt confirmed: ``exactgraph.precompute``."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from exactgraph.capture import capturer_for
from exactgraph.protocol.grades import BIT_IDENTICAL
from exactgraph.protocol.window_ways import BATCHED, CAPTURED, EAGER, PARALLEL
from exactgraph.refusal import Refused
from exactgraph.runtime.attention import preferred
from exactgraph.runtime.guard import Guard
from exactgraph.runtime.precompute import CapturedEncoder, Precomputed, encode_as_generate, same_bits
from exactgraph.runtime.precompute import precompute as encode_all
from exactgraph.runtime.rows import Inputs

_log = logging.getLogger(__name__)
#: Where no receipt says how much: the limit that config.yaml ships with.
_DEVICE_BYTES = 1 << 30


def precompute(model: Any, windows: Sequence[Inputs]) -> Precomputed:
    """The encoder's outputs of ``windows`` ahead of their decoding, for ``model.generate(**window, encoder_outputs=…)``.

    ``windows``: the model's arguments for each, with a batch of one: ``{"input_features": …}`` of a Whisper, in its dtype, on
    its device. After :func:`exactgraph.optimize` they are encoded by the way that the receipt confirmed, in its batches, and
    kept up to its limit on the device, the rest on the host. ``model.exactgraph`` names the way and its grade:
    ``token-identical`` was shown of greedy answers, and other bits may draw other samples. Where nothing is confirmed, or
    where what is must not be used now, eager's encoder takes one window at a time, and the logger ``exactgraph`` says why.
    Returns hidden states ``(1, positions, hidden)`` for each window. Raises ``torch.OutOfMemoryError`` like any forward pass.
    """
    ahead = ahead_of(model)
    if ahead is not None:
        return ahead.precompute(windows)
    _log.warning("The encoder runs eager, one window at a time: no receipt that is installed speaks of windows.")
    return encode_all(model, windows, 1, _DEVICE_BYTES)


def ahead_of(model: Any) -> Ahead | None:
    """What is confirmed for windows of ``model``, where something is."""
    return getattr(vars(model).get("exactgraph"), "ahead", None)


class Ahead:
    """A receipt's decision on windows, for ``model``, under the attention backend ``attention``.

    ``decision`` is the receipt's, ``asked`` what its protocol says of windows. ``encoder`` and ``grade`` say how windows are
    encoded, ``batch`` of them at a time; ``together`` is how many are confirmed to go into one call of ``generate``.
    """

    def __init__(self, model: Any, decision: Mapping[str, Any], asked: Mapping[str, int], attention: str) -> None:
        self.encoder: str = decision["encoder"]
        self.grade: str | None = decision["grade"]
        self.together = asked["parallel"] if decision["mode"] == PARALLEL else 1
        self.batch = asked["encoder_batch"] if self.encoder == BATCHED else 1
        self._device_bytes = asked["device_mib"] << 20
        self._model = model
        self._attention = attention
        self._guard = Guard(model, {})
        # The graph's buffers serve one call at a time.
        self._lock = threading.Lock()
        self._captured = CapturedEncoder(model, capturer_for(model.device)) if self.encoder == CAPTURED else None
        self._checked = False

    def __repr__(self) -> str:
        how = f"in batches of {self.batch}" if self.batch > 1 else f"one at a time, {self.encoder}"
        decoded = f"{self.together} in one call" if self.together > 1 else "one after the other"
        return f"encoded {how} ({self.grade}), decoded {decoded}"

    def in_one_call(self) -> int:
        """How many windows may go into one call of ``generate`` now: 1 where the model is not what was confirmed."""
        return 1 if self._guard.refusal() else self.together

    def precompute(self, windows: Sequence[Inputs]) -> Precomputed:
        """See :func:`precompute`."""
        with self._lock, preferred(self._attention):
            try:
                if self.encoder != EAGER:
                    return self._confirmed(windows)
            except Refused as refused:
                _log.warning("The encoder runs eager, one window at a time: %s", refused)
            return encode_all(self._model, windows, 1, self._device_bytes)

    def _confirmed(self, windows: Sequence[Inputs]) -> Precomputed:
        refusal = self._guard.refusal()
        if refusal is not None:
            raise Refused(refusal.reason, refusal.sentence)
        outputs = encode_all(self._model, windows, self.batch, self._device_bytes, self._captured)
        if self.grade == BIT_IDENTICAL and len(windows) and not self._checked:
            with torch.no_grad():
                expected = encode_as_generate(self._model, windows[0])
            if not same_bits(outputs[0].last_hidden_state, expected):
                raise Refused("self-check", "The first window has other bits than eager's, which the receipt says it has not.")
            self._checked = True
        return outputs
