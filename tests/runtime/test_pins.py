"""Calls of several threads under their pins of the attention backend, which torch keeps for the whole process."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
import torch
from runtime_models import make_llama, prompt
from runtime_outputs import ask, assert_same, steps_of

from exactgraph.candidates.base import Context
from exactgraph.candidates.registry import candidate
from exactgraph.capture import capturer_for
from exactgraph.capture.cuda import _HeldOff
from exactgraph.environment.flags import flags
from exactgraph.runtime.attention import pinned, preferred
from exactgraph.runtime.session import Session

SECONDS = 20


def enabled() -> set[str]:
    """The backends that torch may use at this moment."""
    read = {
        "flash": torch.backends.cuda.flash_sdp_enabled,
        "efficient": torch.backends.cuda.mem_efficient_sdp_enabled,
        "math": torch.backends.cuda.math_sdp_enabled,
        "cudnn": torch.backends.cuda.cudnn_sdp_enabled,
    }
    return {name for name, is_on in read.items() if is_on()}


class Held:
    """A thread in a block under a pin, until it is let go."""

    def __init__(self, pool: ThreadPoolExecutor, name: str, then: Callable[[], set[str]] = enabled) -> None:
        self.inside, self._go, self._then = threading.Event(), threading.Event(), then
        self._result: Future[set[str]] = pool.submit(self._run, name)

    def _run(self, name: str) -> set[str]:
        with pinned(name):
            self.inside.set()
            assert self._go.wait(SECONDS)
            return self._then()

    def end(self) -> set[str]:
        """What was enabled just before the end of the block."""
        self._go.set()
        return self._result.result(SECONDS)


@pytest.fixture
def pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(4)


def test_calls_under_one_pin_run_side_by_side_and_the_last_one_takes_it_away(pool: ThreadPoolExecutor) -> None:
    before = flags()
    first, second = Held(pool, "flash"), Held(pool, "flash")
    assert first.inside.wait(SECONDS)
    assert second.inside.wait(SECONDS)
    assert first.end() == {"flash"}
    assert enabled() == {"flash"}, "the second one is still under it"
    assert second.end() == {"flash"}
    assert flags() == before
    assert enabled() == {"flash", "efficient", "math", "cudnn"}


@pytest.mark.parametrize("other", ["math", "default"])
def test_a_call_under_another_pin_or_none_waits(pool: ThreadPoolExecutor, other: str) -> None:
    everything = enabled()
    first = Held(pool, "flash")
    assert first.inside.wait(SECONDS)
    second = Held(pool, other)
    assert not second.inside.wait(0.5)
    # Whoever comes later comes after it, or it might wait for ever.
    third = Held(pool, "flash")
    assert not third.inside.wait(0.5)
    assert first.end() == {"flash"}
    assert second.inside.wait(SECONDS)
    assert second.end() == (everything if other == "default" else {"math"})
    assert third.inside.wait(SECONDS)
    assert third.end() == {"flash"}
    assert enabled() == everything


def test_a_call_inside_another_has_its_own_pin_or_none(pool: ThreadPoolExecutor) -> None:
    everything = enabled()
    with pinned("flash"):
        with pinned("math"):
            assert enabled() == {"math"}
            with pinned("default"):
                assert enabled() == everything
            assert enabled() == {"math"}
        assert enabled() == {"flash"}
        with pinned("flash"):
            assert enabled() == {"flash"}
        assert enabled() == {"flash"}
    assert enabled() == everything
    other = Held(pool, "flash")
    assert other.inside.wait(SECONDS)

    def nests() -> set[str]:
        with pinned("math"):
            return enabled()

    nesting = Held(pool, "flash", nests)
    assert nesting.inside.wait(SECONDS)
    nesting._go.set()
    assert not nesting._result.done()
    assert other.end() == {"flash"}
    assert nesting.end() == {"math"}
    assert enabled() == everything


def test_the_flags_are_those_of_everybody_else(pool: ThreadPoolExecutor) -> None:
    before = flags()
    held = Held(pool, "math")
    assert held.inside.wait(SECONDS)
    assert enabled() == {"math"}
    assert flags() == before
    torch.backends.cuda.matmul.allow_tf32 = not torch.backends.cuda.matmul.allow_tf32
    try:
        assert flags() != before, "a flag that no pin changes is seen at once"
    finally:
        torch.backends.cuda.matmul.allow_tf32 = not torch.backends.cuda.matmul.allow_tf32
    held.end()
    assert flags() == before


def test_an_error_ends_the_pin() -> None:
    everything = enabled()

    def fails() -> None:
        with preferred("flash"):
            assert enabled() == {"flash", "math"}
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        fails()
    assert enabled() == everything


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_process_is_under_no_pin_of_a_thread_that_it_does_not_have(pool: ThreadPoolExecutor) -> None:
    everything = enabled()
    held = Held(pool, "flash")
    assert held.inside.wait(SECONDS)
    child = os.fork()
    if not child:
        with pinned("math"):
            right = enabled() == {"math"}
        os._exit(0 if right and enabled() == everything else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert held.end() == {"flash"}


@pytest.mark.parametrize("pins", [("math", "math"), ("math", "default"), ("flash", "math")])
def test_two_models_in_two_threads_under_their_pins(pins: tuple[str, str]) -> None:
    """Neither sees the other's pin as a change of flags, and both are captured and exact."""
    device = torch.device("cpu")
    together = threading.Barrier(2)

    def works(place: int, pin: str) -> int:
        llama, ids = make_llama(device), prompt(device, 12, seed=place)
        context = Context(capturer_for(device), 64, 64, 128)
        step = candidate("step")
        plan = step.plan(llama, context)
        with Session(llama, step, plan, context, pin) as session:
            expected = ask(session.eager, ids)
            captured = 0
            for _ in range(4):
                together.wait(SECONDS)
                assert_same(ask(llama.generate, ids), expected)
                captured += steps_of(session)[0]
            return captured

    before = enabled()
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(works, (0, 1), pins)) == [4 * 23, 4 * 23]
    assert enabled() == before


def test_collection_is_held_off_until_the_last_of_two_captures_has_ended() -> None:
    import gc

    held_off = _HeldOff()
    assert gc.isenabled()
    first, second = held_off(), held_off()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not gc.isenabled()
    second.__exit__(None, None, None)
    assert gc.isenabled()
    gc.disable()
    try:
        with held_off():
            pass
        assert not gc.isenabled(), "it was off before"
    finally:
        gc.enable()
