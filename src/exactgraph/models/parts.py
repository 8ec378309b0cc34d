"""Names of the parts of a decode step, for profiles and for what candidates say they touch. Free of torch."""

from __future__ import annotations

# Parts of a decoder in a known layout. Their work includes that of every module inside.
INPUT_NORM = "input norm"
QKV = "q, k, v"
POST_NORM = "post-attention norm"
MLP = "mlp"
FINAL_NORM = "final norm"
HEAD = "head"

#: All that the host does in a step.
WHOLE = "whole step"

# Kinds of work, in any model: every moment of a step belongs to one of them.
PROJECTION = "projection"
NORM = "norm"
ACTIVATION = "activation"
ATTENTION = "attention"
ROTARY = "rotary"
CACHE = "cache"
OTHER = "other"  # embedding, masks, residual additions
SAMPLING = "sampling"  # everything outside the model's forward pass
KINDS = (PROJECTION, NORM, ACTIVATION, ATTENTION, ROTARY, CACHE, HEAD, OTHER, SAMPLING)
