"""A device without room for more graphs: what is captured stays, the rest runs eager, and nothing else changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from runtime_models import prompt
from runtime_outputs import ask, assert_same, assert_same_cache, attached, steps_of
from sessions import open_session

from exactgraph.candidates.base import Context
from exactgraph.candidates.registry import candidate
from exactgraph.capture import Capturer, Graph, capturer_for
from exactgraph.models.cache import cache_of
from exactgraph.refusal import Refused
from exactgraph.runtime.session import Session


class Small(Capturer):
    """Has room for ``room`` graphs."""

    def __init__(self, inner: Capturer, room: int) -> None:
        super().__init__()
        self.inner, self.room, self.refused = inner, room, 0
        self.emulated = inner.emulated

    def capture(self, function: Callable[[], Any]) -> Graph:
        if self.inner.graphs >= self.room:
            self.refused += 1
            raise Refused("capture-out-of-memory", "There is no room.")
        return self.inner.capture(function)


def test_step_goes_on_in_eager_where_capture_is_refused(llama: Any, attention: str) -> None:
    llama.set_attn_implementation("eager")  # which has a graph for each length
    capturer = Small(capturer_for(llama.device), 6)
    context = Context(capturer, budget=64, validated_length=64, confirmed_length=64)
    step = candidate("step")
    ids = prompt(llama.device, 12)
    with open_session(llama, step, context, attention) as session:
        expected = ask(session.eager, ids)
        for _ in range(2):
            got = ask(llama.generate, ids)
            assert_same(got, expected)
            assert_same_cache(cache_of(got), cache_of(expected))
            # Planning took one of the six, and choosing another.
            assert steps_of(session) == (4, 19)
        assert capturer.refused == 1, "it asks once, not at every step"


@pytest.mark.parametrize("name", ["C022", "step"])
def test_a_candidate_that_cannot_capture_at_all_refuses_its_plan(llama: Any, name: str) -> None:
    context = Context(Small(capturer_for(llama.device), 0), budget=64, validated_length=64, confirmed_length=64)
    with pytest.raises(Refused, match="no room"):
        candidate(name).plan(llama, context)
    assert not attached(llama)


def test_an_installation_that_fails_leaves_nothing_in_the_model(llama: Any, attention: str) -> None:
    context = Context(Small(capturer_for(llama.device), 2), budget=64, validated_length=64, confirmed_length=64)
    with pytest.raises(Refused, match="no room"):
        Session(llama, candidate("C022"), {}, context, attention)
    assert not attached(llama)
    assert "generate" not in vars(llama)
