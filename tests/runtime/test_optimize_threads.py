"""Threads, forks, interrupts and copies while a session is open."""

from __future__ import annotations

import copy
import gc
import io
import os
import pickle
import signal
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from runtime_models import make_llama, prompt
from runtime_outputs import ask, assert_same, assert_same_bits, attached, refusal_of
from sessions import open_session
from torch.utils.data import DataLoader
from transformers import LogitsProcessorList, masking_utils

from exactgraph.candidates.base import Context
from exactgraph.capture import capturer_for
from exactgraph.models.masks import masks_as_in_eager
from exactgraph.refusal import Refused
from exactgraph.runtime.attention import preferred
from exactgraph.runtime.session import Session

Install = Callable[..., Session]
SERVED = ["step", "C022"]


def during(act: Callable[[], None], at: int = 15) -> LogitsProcessorList:
    """A processor that acts once, in the middle of a call."""

    def processor(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if input_ids.shape[1] == at:
            act()
        return scores

    return LogitsProcessorList([processor])


def in_a_thread(work: Callable[[], Any]) -> Any:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    thread.join(timeout=60)
    assert results, "the thread did not end"
    return results[0]


def test_a_direct_call_in_another_thread_meets_no_stand_in(llama: Any, install: Install) -> None:
    mlp = llama.model.layers[1].mlp
    token = torch.ones((1, 1, 256), dtype=llama.dtype, device=llama.device)

    @torch.no_grad()
    def direct() -> tuple[torch.Tensor, torch.Tensor]:
        first, second = mlp(token), mlp(2 * token)
        return first, second

    expected, seen = direct(), []
    ids = prompt(llama.device, 12)
    with install("C022") as session:
        got = ask(llama.generate, ids, logits_processor=during(lambda: seen.append(in_a_thread(direct))))
        assert session.last is not None
        assert session.last.refusal is None
        assert_same(got, ask(session.eager, ids))
    # A stand-in returns its static buffer, and the second call would have written over the first one's result.
    for result, want in zip(seen[0], expected, strict=True):
        assert_same_bits(result, want)


@pytest.mark.parametrize("name", SERVED)
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, RuntimeError])
def test_an_interrupt_leaves_the_model_usable(llama: Any, install: Install, name: str, error: type[BaseException]) -> None:
    class Streamer:
        def put(self, value: torch.Tensor) -> None:
            if value.numel() == 1:
                raise error

        def end(self) -> None:
            raise AssertionError("the call did not end")

    def breaks() -> None:
        raise error

    ids = prompt(llama.device, 12)
    with install(name) as session:
        with pytest.raises(error):
            ask(llama.generate, ids, streamer=Streamer())
        with pytest.raises(error):
            ask(llama.generate, ids, logits_processor=during(breaks))
        assert not attached(llama)
        got = ask(llama.generate, ids)
        assert session.last is not None
        assert session.last.refusal is None
        assert_same(got, ask(session.eager, ids))


def test_what_an_interrupted_clean_up_left_is_taken_away(llama: Any, install: Install) -> None:
    ids = prompt(llama.device, 12)
    with install("C022") as session:
        session._stand_ins.attach()
        got = ask(llama.generate, ids)
        assert session.last is not None
        assert session.last.refusal is None
        assert_same(got, ask(session.eager, ids))


@pytest.mark.skipif(torch.cuda.is_available(), reason="a forked process cannot use CUDA")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize("name", SERVED)
@pytest.mark.parametrize("inside", [False, True])
def test_a_forked_process_runs_eager(llama: Any, install: Install, name: str, inside: bool) -> None:
    ids, told = prompt(llama.device, 12), []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a forked OpenMP pool hangs
    try:
        with install(name) as session:
            expected = ask(session.eager, ids, 8).sequences.tolist()

            def fork() -> None:
                told.append(_in_a_fork(lambda: (ask(llama.generate, ids, 8).sequences.tolist(), refusal_of(session))))

            if inside:
                # The lock is held and the stand-ins are attached when the process is forked, by another thread.
                ask(llama.generate, ids, logits_processor=during(lambda: in_a_thread(lambda: fork() or True)))
            else:
                fork()
            assert told == [(expected, "forked")]
            ask(llama.generate, ids)
            assert session.last is not None
            assert session.last.refusal is None
    finally:
        torch.set_num_threads(threads)


def _in_a_fork(work: Callable[[], Any]) -> Any:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(30)  # a lock that nobody is left to release
        try:
            said: Any = work()
        except BaseException as error:
            said = repr(error)
        os.write(writing, pickle.dumps(said))
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    assert answer, "the forked process hung or died"
    return pickle.loads(answer)


def _pickled(model: Any) -> Any:
    return pickle.loads(pickle.dumps(model))


def _saved(model: Any) -> Any:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("name", SERVED)
@pytest.mark.parametrize("how", [copy.deepcopy, copy.copy, _pickled, _saved])
def test_a_copy_is_an_untouched_model(llama: Any, install: Install, name: str, how: Callable[[Any], Any]) -> None:
    ids = prompt(llama.device, 12)
    with install(name) as session:
        ask(llama.generate, ids)
        copied = how(llama)
        assert set(vars(copied)) == set(vars(llama)) - {"generate", "__reduce_ex__"}
        assert copied.generate.__self__ is copied
        before = session.served
        got = ask(copied.generate, ids)
        assert session.served == before
        assert [tuple(step.shape) for step in got.logits] == [(1, 512)] * 24
        assert llama.generate == session.generate


@pytest.mark.parametrize("how", [copy.deepcopy, _pickled])
def test_a_copy_in_the_middle_of_a_call_is_refused(llama: Any, install: Install, how: Callable[[Any], Any]) -> None:
    ids = prompt(llama.device, 12)
    with install("C022") as session:
        with pytest.raises(Refused, match="while a call of generate runs: wait until it has ended") as caught:
            ask(llama.generate, ids, logits_processor=during(lambda: how(llama)))
        assert caught.value.refusal.reason == "running"
        got = ask(llama.generate, ids)
        assert_same(got, ask(session.eager, ids))


def test_closing_waits_for_a_call_and_what_waited_runs_eager(llama: Any, install: Install) -> None:
    ids = prompt(llama.device, 12)
    session = install("C022")
    kept = llama.generate
    begun, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        assert go_on.wait(timeout=60)

    answers: list[Any] = []
    caller = threading.Thread(target=lambda: answers.append(ask(kept, ids, logits_processor=during(wait))))
    caller.start()
    assert begun.wait(timeout=60)
    closer = threading.Thread(target=session.close)
    closer.start()
    assert closer.is_alive()
    go_on.set()
    for thread in (caller, closer):
        thread.join(timeout=60)
    assert "generate" not in vars(llama)
    assert_same(ask(kept, ids), ask(session.eager, ids))
    assert refusal_of(session) == "closed"
    assert_same(answers[0], ask(llama.generate, ids))


def test_a_session_is_not_closed_from_inside_its_call(llama: Any, install: Install) -> None:
    with install("step") as session:
        with pytest.raises(Refused, match="from inside its own call"):
            ask(llama.generate, prompt(llama.device, 12), logits_processor=during(session.close))
        assert llama.generate == session.generate


@pytest.mark.parametrize("name", SERVED)
def test_closing_gives_back_all_memory(llama: Any, install: Install, name: str) -> None:
    ids = prompt(llama.device, 12)
    cuda = llama.device.type == "cuda"
    # What the libraries keep for themselves, a workspace for the stream of captures among it.
    install(name).close()
    ask(llama.generate, ids)
    gc.collect()
    before = torch.cuda.memory_allocated() if cuda else 0
    session = install(name)
    ask(llama.generate, ids)
    kept = [weakref.ref(session._installation), *map(weakref.ref, session._stand_ins.of.values())]
    session.close()
    gc.collect()
    assert not any(reference() for reference in kept)
    if cuda:
        torch.cuda.empty_cache()
        assert torch.cuda.memory_allocated() == before


def test_two_captures_at_once_leave_transformers_as_it_was() -> None:
    own = masking_utils.is_tracing
    inside, go_on, over = threading.Event(), threading.Event(), threading.Event()

    def first() -> None:
        with masks_as_in_eager():
            inside.set()
            go_on.wait(timeout=60)
        over.set()

    def second() -> None:
        with masks_as_in_eager():
            over.wait(timeout=60)

    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    threads[0].start()
    assert inside.wait(timeout=60)
    threads[1].start()
    threads[1].join(timeout=0.2)
    go_on.set()
    for thread in threads:
        thread.join(timeout=60)
    assert masking_utils.is_tracing is own


@pytest.mark.parametrize("name", SERVED)
def test_two_models_on_one_device_at_once(device: torch.device, attention: str, name: str) -> None:
    models = [make_llama(device), make_llama(device, num_hidden_layers=2)]
    ids, sessions = prompt(device, 12), []
    for model in models:
        sessions.append(open_session(model, name, Context(capturer_for(device), 64, 24, 64), attention))
    together, answers = threading.Barrier(2), {0: [], 1: []}

    def work(index: int) -> None:
        for _ in range(3):
            together.wait(timeout=60)
            answers[index].append(ask(models[index].generate, ids, 12))

    threads = [threading.Thread(target=work, args=(index,)) for index in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    for index, session in enumerate(sessions):
        assert session.served == len(answers[index]) == 3
        expected = ask(session.eager, ids, 12)
        for answer in answers[index]:
            assert_same(answer, expected)
        session.close()


@pytest.mark.gpu
@pytest.mark.parametrize("name", SERVED)
def test_a_data_loader_pins_memory_during_capture(llama: Any, install: Install, name: str) -> None:
    if llama.device.type != "cuda":
        pytest.skip("Memory is pinned for a GPU.")
    ids, rows, over = prompt(llama.device, 12), [], threading.Event()

    def load() -> None:
        while not over.is_set():
            for batch in DataLoader(torch.arange(4096.0).reshape(64, 64), batch_size=4, pin_memory=True):
                rows.append(batch.to(llama.device, non_blocking=True).sum().item())

    loader = threading.Thread(target=load)
    loader.start()
    try:
        while not rows:
            assert loader.is_alive()
        with install(name) as session:  # captures at installation or in the call
            got = ask(llama.generate, ids)
            assert session.last is not None
            assert session.last.refusal is None
            assert_same(got, ask(session.eager, ids))
    finally:
        over.set()
        loader.join(timeout=60)
    assert sum(rows[:16]) == sum(range(4096))


@pytest.mark.gpu
@pytest.mark.parametrize("name", SERVED)
def test_a_gpu_without_room_for_capture_runs_eager_and_gets_its_memory_back(
    llama: Any, install: Install, attention: str, name: str
) -> None:
    if llama.device.type != "cuda":
        pytest.skip("A CPU's memory is not capped.")
    ids = prompt(llama.device, 12)
    with preferred(attention):
        expected = ask(llama.generate, ids)
    gc.collect()
    torch.cuda.empty_cache()
    before, total = torch.cuda.memory_reserved(), torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((before + (1 << 20)) / total, 0)
    try:
        with pytest.raises((Refused, torch.OutOfMemoryError)):
            install(name, budget=64, confirmed=1 << 16)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, 0)
    assert not attached(llama)
    assert "generate" not in vars(llama)
    gc.collect()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= before
    with preferred(attention):
        assert_same(ask(llama.generate, ids), expected)
