"""The grades of exactness: every logit of every step has the baseline's bits, or only the token IDs are the same."""

from __future__ import annotations

BIT_IDENTICAL = "bit-identical"
TOKEN_IDENTICAL = "token-identical"
