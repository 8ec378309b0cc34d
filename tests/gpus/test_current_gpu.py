"""A model on one GPU while another one is current: captured where its own is current, else refused by name; never wrong.

Elsewhere a graph was captured on the wrong GPU and its output stayed as it was (fault 11 of the project's list), so every call
has another prompt.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from runtime_models import make_llama, prompt
from runtime_outputs import ask, assert_same, refusal_of, steps_of
from sessions import open_session, planned

from exactgraph.candidates.base import Context
from exactgraph.candidates.registry import candidate
from exactgraph.capture import capturer_for
from exactgraph.refusal import Refused
from exactgraph.runtime.session import Session

pytestmark = pytest.mark.gpu(2)

SERVED = ["step", "C022", "C025"]


def opened(llama: Any, name: str) -> Session:
    return open_session(llama, name, Context(capturer_for(llama.device), 64, 64, 128), "flash")


def assert_captured(session: Session) -> None:
    assert session.last is not None
    assert session.last.refusal is None
    if session.last.steps is not None:
        assert steps_of(session) == (23, 0)


@pytest.mark.parametrize("name", SERVED)
@pytest.mark.parametrize("home", [0, 1])
def test_fault_11_a_model_that_is_not_on_the_current_gpu(gpus: list[torch.device], name: str, home: int) -> None:
    there, elsewhere = gpus[home], gpus[1 - home]
    llama = make_llama(there)
    prompts = [prompt(there, 12, seed) for seed in range(4)]
    with torch.cuda.device(there):
        session = opened(llama, name)
    torch.cuda.set_device(elsewhere)
    with session:
        expected = [ask(session.eager, ids) for ids in prompts]
        assert len({tuple(answer.sequences[0].tolist()) for answer in expected}) == len(prompts)
        for place, ids in enumerate(prompts):
            with torch.cuda.device(there if place % 2 == 0 else elsewhere):
                assert_same(ask(llama.generate, ids), expected[place])
                if place % 2 == 0:
                    assert_captured(session)
                else:
                    assert refusal_of(session) == "current-device"
    assert torch.cuda.current_device() == elsewhere.index


@pytest.mark.parametrize("name", SERVED)
def test_a_session_is_refused_where_another_gpu_is_current(gpus: list[torch.device], name: str) -> None:
    """Planning captures on the model's own GPU, whichever is current."""
    llama = make_llama(gpus[1])
    context = Context(capturer_for(llama.device), 64, 64, 128)
    chosen, decisions = candidate(name), planned(llama, name, context, "flash")
    with pytest.raises(Refused, match="The current GPU is 0 and the model is on cuda:1") as caught:
        Session(llama, chosen, decisions, context, "flash")
    assert caught.value.refusal.reason == "current-device"
    with torch.cuda.device(gpus[1]), Session(llama, chosen, decisions, context, "flash") as session:
        ids = prompt(gpus[1], 12)
        got = ask(llama.generate, ids)
        assert_captured(session)
        assert_same(got, ask(session.eager, ids))


@pytest.mark.parametrize("name", SERVED)
def test_the_next_call_after_the_current_gpu_changed_is_refused(gpus: list[torch.device], name: str) -> None:
    llama = make_llama(gpus[0])
    with opened(llama, name) as session:
        for current, ids in ((0, prompt(gpus[0], 12, 1)), (1, prompt(gpus[0], 12, 2)), (0, prompt(gpus[0], 12, 3))):
            torch.cuda.set_device(current)
            got = ask(llama.generate, ids)
            if current == 0:
                assert_captured(session)
            else:
                assert refusal_of(session) == "current-device"
            assert_same(got, ask(session.eager, ids))


@pytest.mark.parametrize("name", SERVED)
def test_a_model_that_moved_to_the_other_gpu_is_not_replayed(gpus: list[torch.device], name: str) -> None:
    llama = make_llama(gpus[0])
    with opened(llama, name) as session:
        ask(llama.generate, prompt(gpus[0], 12))
        assert_captured(session)
        llama.to(gpus[1])
        with torch.cuda.device(gpus[1]):
            ids = prompt(gpus[1], 12, 1)
            got = ask(llama.generate, ids)
            assert refusal_of(session) == "model-changed"
            assert_same(got, ask(session.eager, ids))
    with torch.cuda.device(gpus[1]), opened(llama, name) as session:
        ids = prompt(gpus[1], 12, 2)
        got = ask(llama.generate, ids)
        assert_captured(session)
        assert_same(got, ask(session.eager, ids))
