"""Where tokens enter a decoder and where logits leave it, also in a class of a user's own that says neither."""

from __future__ import annotations

from typing import Any

from torch import nn


def output_head(model: Any) -> nn.Module | None:
    """The module that makes logits of the last hidden state: what ``model`` says, else the last of its linear modules that
    gives a logit for each token of the vocabulary. None where neither is there.
    """
    named: nn.Module | None = model.get_output_embeddings()
    if named is not None:
        return named
    heads = [module for module in model.modules() if isinstance(module, nn.Linear) and module.out_features == _tokens(model)]
    return heads[-1] if heads else None


def token_embedding(model: Any) -> nn.Module | None:
    """The table that tokens are looked up in: what ``model`` says, else the first one with a row for each token. None where
    neither is there.
    """
    try:
        named: nn.Module | None = model.get_input_embeddings()
    except NotImplementedError:  # transformers' word for a class that does not say
        named = None
    if named is not None:
        return named
    tables = (module for module in model.modules() if isinstance(module, nn.Embedding))
    return next((table for table in tables if table.num_embeddings == _tokens(model)), None)


def _tokens(model: Any) -> int:
    vocabulary: int = model.config.get_text_config(decoder=True).vocab_size
    return vocabulary
