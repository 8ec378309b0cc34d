"""Which kinds and parts of a decode step each candidate changes, for the profile.

A table of its own, so that an edit of a candidate does not profile anew. Free of torch.
"""

from __future__ import annotations

from exactgraph.models import parts

_BLOCKS = (parts.INPUT_NORM, parts.POST_NORM, parts.MLP, parts.FINAL_NORM, parts.HEAD)

#: By candidate; controls touch nothing.
TOUCHES: dict[str, tuple[str, ...]] = {
    "C022": (parts.MLP,),
    "C023": _BLOCKS,
    "C024": _BLOCKS,
    "C025": (*_BLOCKS, parts.QKV),
    "C026": (*_BLOCKS, parts.QKV),
    # A static cache is written in place and masked: cache, attention and masks change.
    "static": (parts.CACHE, parts.ATTENTION, parts.OTHER),
    "static-compile": (parts.WHOLE,),
    "compile": (parts.WHOLE,),
    "step": (parts.WHOLE,),
    "static-step-compile": (parts.WHOLE,),
    "encdec-step": (parts.WHOLE,),
    "encdec-compile": (parts.WHOLE,),
}
