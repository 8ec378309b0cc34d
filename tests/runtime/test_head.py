"""Where logits leave a model and where tokens enter it, also where its class says neither."""

from __future__ import annotations

import pytest
import torch
from encdec_models import make
from runtime_models import make_llama

from exactgraph.candidates.base import Context
from exactgraph.candidates.registry import candidate
from exactgraph.capture import capturer_for
from exactgraph.models.head import output_head, token_embedding
from exactgraph.refusal import Refused

CPU = torch.device("cpu")


def test_a_model_says_it() -> None:
    model = make_llama(CPU)
    assert output_head(model) is model.lm_head
    assert token_embedding(model) is model.model.embed_tokens


def test_a_class_of_the_users_own_does_not() -> None:
    model = make("frames", CPU)
    assert model.get_output_embeddings() is None
    with pytest.raises(NotImplementedError):
        model.get_input_embeddings()
    assert output_head(model) is model.events
    assert token_embedding(model) is model.backbone.decoder.embed_tokens


def test_without_a_linear_head_no_rounding_can_be_changed() -> None:
    model = make("frames", CPU)
    model.events = torch.nn.Identity()
    assert output_head(model) is None
    with pytest.raises(Refused, match="FramesModel has no linear output head"):
        candidate("wrong-ulp").install(model, {}, Context(capturer_for(CPU), 8, 8, 8))
