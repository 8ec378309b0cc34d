"""Masks of an encoder-decoder's step, made without a look at their values.

transformers reads whether a mask masks anything, and leaves it out where it does not. A captured step cannot read, so it is
told: the answer is found once a call, before the first step, and steps with another answer have other graphs. Some decoders
(BART) make a mask of ones in every step only to have it left out again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch

from exactgraph.models.masks import masks_as_in_eager
from exactgraph.models.step_inputs import GROWING

_ROOM = "transformers.masking_utils"
#: Whether the mask of the decoder's tokens, and whether the encoder's, masks nothing.
Full = tuple[bool, bool]


def full_masks(inputs: dict[str, Any]) -> Full:
    """Look at the masks among the inputs of a step; one that is not given masks nothing. The host waits."""
    decoder, encoder = (_full(inputs.get(name)) for name in (GROWING, "attention_mask"))
    return decoder, encoder


@contextmanager
def masks_known(full: Full) -> Iterator[None]:
    """Build masks in the block as eager builds them where the answers are ``full``."""
    from transformers import masking_utils

    decoder, encoder = full
    causal, bidirectional = masking_utils._ignore_causal_mask_sdpa, masking_utils._ignore_bidirectional_mask_sdpa

    def ignore_causal(padding_mask: Any, *sizes: Any, **others: Any) -> bool:
        if padding_mask is not None and not decoder:
            return False
        return bool(causal(None, *sizes, **others))

    def ignore_bidirectional(padding_mask: Any, *sizes: Any, **others: Any) -> bool:
        if padding_mask is not None and not encoder:
            return False
        return bool(bidirectional(None, *sizes, **others))

    with (
        masks_as_in_eager(),
        patch(f"{_ROOM}._ignore_causal_mask_sdpa", ignore_causal),
        patch(f"{_ROOM}._ignore_bidirectional_mask_sdpa", ignore_bidirectional),
    ):
        yield


def _full(mask: Any) -> bool:
    return not isinstance(mask, torch.Tensor) or bool((mask == 1).all())
