"""More of what went wrong with captured decoding elsewhere: between processes, between graphs, and at the edges of lengths."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fresh_process
import pytest
import torch
from fresh_process import TOKENS, WRONG_FROM, spawn
from runtime_models import make_llama, prompt
from runtime_outputs import ask, assert_same, assert_same_bits, steps_of
from sessions import open_session
from sessions import planned as decided

from exactgraph.candidates.base import Candidate, Context, Decisions, Installation
from exactgraph.canonical import read_json, write_json
from exactgraph.capture import Capturer, capturer_for
from exactgraph.environment.gpulock import Hold
from exactgraph.refusal import UserError
from exactgraph.runtime.session import Session
from exactgraph.stages import confirm, freeze, loaded
from exactgraph.stages.place import Place

CODE = "c" * 16


def opened(model: Any, attention: str, capturer: Capturer, confirmed: int = 128, name: str = "step") -> Session:
    return open_session(model, name, Context(capturer, 512, 64, confirmed), attention)


# 3: at some lengths attention is split another way


@pytest.mark.parametrize("edge", [128, 256, 512])
def test_fault_3_lengths_on_both_sides_of_an_edge(llama: Any, attention: str, edge: int) -> None:
    """Prompts that end just before, at and behind the edge, and answers that cross it."""
    with opened(llama, attention, capturer_for(llama.device), confirmed=edge + 16) as session:
        for tokens in range(edge - 3, edge + 3):
            ids = prompt(llama.device, tokens, seed=tokens)
            got = ask(llama.generate, ids, 6)
            assert steps_of(session) == (5, 0)
            assert_same(got, ask(session.eager, ids, 6))


# 5: runs differ from process to process


@pytest.fixture
def place(tmp_path: Path, device: torch.device) -> Place:
    """A key's folder in which nothing ran yet."""
    folder = tmp_path / "model@0123456789ab" / "device" / "environment" / "protocol"
    backends = ["flash"] if device.type == "cuda" else []
    write_json(folder / "protocol.json", {"baselines": 3, "attention_preference": backends})
    for name in ("flaky", "step"):
        decisions = {} if name == "flaky" else planned(folder, device)
        write_json(folder / "candidates" / name / "plan.json", {"candidate": name, "decisions": decisions})
    return Place(folder)


def planned(folder: Path, device: torch.device) -> Decisions:
    """What ``step`` decides for the small model."""
    from exactgraph.stages.context import context_of

    small = fresh_process.loaded(folder, device)
    return decided(small.model, "step", context_of(small), "flash" if device.type == "cuda" else "default")


def freeze_fresh(place: Place, device: torch.device, monkeypatch: pytest.MonkeyPatch, third: str) -> dict[str, Any]:
    """Freeze three fresh processes of eager, the third of which is ``third``, under one backend after the other."""

    def record(attention: str, number: int) -> None:
        name = third if number == 3 else "eager"
        spawn("baseline", place.folder, place.baseline_path(attention, number), device, attention, name, number)

    def run_fresh(*arguments: str) -> None:
        named = dict(zip(arguments[2::2], arguments[3::2], strict=True))
        record(named["--attention"], int(named["--run"]))

    monkeypatch.setattr(freeze, "run_fresh", run_fresh)
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(record, ["default"] * 3, (1, 2, 3)))
    freeze.run(place.folder, CODE, 3)
    frozen: dict[str, Any] = read_json(place.folder / "frozen.json")
    return frozen


def confirm_fresh(place: Place, device: torch.device, name: str, number: int) -> dict[str, Any]:
    """An attempt in a fresh process."""
    out = place.folder / f"attempt.{name}.{number}.json"
    spawn("confirm", place.folder, out, device, "default", name, number)
    attempt: dict[str, Any] = read_json(out)
    return attempt


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_fault_5_an_eager_that_differs_between_processes_is_not_frozen(
    place: Place, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen = freeze_fresh(place, device, monkeypatch, "flaky")
    assert frozen["status"] == "baseline-unstable"
    difference = frozen["attempts"][-1]["difference"]
    assert (difference["prompt"], difference["step"]) == ("long/0", WRONG_FROM)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_fault_5_three_processes_have_equal_bits_and_a_flaky_candidate_is_not_confirmed(
    place: Place, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen = freeze_fresh(place, device, monkeypatch, "eager")
    assert frozen["status"] == "frozen"
    assert [len(trace["tokens"]) for trace in frozen["sets"]["long"]] == [TOKENS]
    with ThreadPoolExecutor(3) as pool:
        lucky, *attempts = pool.map(lambda run: confirm_fresh(place, device, *run), [("flaky", 1), ("step", 1), ("step", 2)])
    # Where it is right it cannot be told from one that always is.
    assert lucky["status"] == "matched"
    for attempt in attempts:
        assert (attempt["status"], attempt["grade"]) == ("matched", "bit-identical"), attempt["why"]
        assert attempt["sets"] == frozen["sets"]
    candidates = {name: {"control": False} for name in ("flaky", "step")}
    write_json(place.folder / "ranking.json", {"status": None, "order": ["flaky", "step"], "candidates": candidates})
    monkeypatch.setattr(confirm, "attempt_fresh", lambda folder, name: confirm_fresh(place, device, name, 3))
    confirm.run(place.folder, CODE, 1)
    result = read_json(place.folder / "confirmation.json")
    assert result["confirmed"] == "step", result["attempts"][0]["why"]
    flaky, step = result["attempts"]
    assert (flaky["status"], flaky["difference"]["step"]) == ("mismatch", WRONG_FROM)
    assert step["sets"] == frozen["sets"]


# 14: the end of one graph takes another one's workspace


@pytest.mark.parametrize("name", ["step", "C025"])
@pytest.mark.parametrize("order", ["first closed", "second closed"])
def test_fault_14_the_end_of_one_session_leaves_the_other_its_bits(
    device: torch.device, attention: str, name: str, order: str
) -> None:
    models = [make_llama(device), make_llama(device)]
    capturers = [capturer_for(device), capturer_for(device)]
    sessions = [opened(model, attention, capturer, name=name) for model, capturer in zip(models, capturers, strict=True)]
    ids = prompt(device, 12)
    answers = [ask(model.generate, ids) for model in models]
    gone = 0 if order == "first closed" else 1
    sessions[gone].close()
    sessions[gone] = models[gone] = capturers[gone] = answers[gone] = None
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        # What was given back is used by somebody else.
        scratch = [torch.full((1 << 20,), float("nan"), device=device) for _ in range(64)]
    left = 1 - gone
    with sessions[left]:
        graphs = capturers[left].graphs
        assert_same(ask(models[left].generate, ids), answers[left])
        assert sessions[left].last.refusal is None
        other = prompt(device, 12, seed=1)
        assert_same(ask(models[left].generate, other), ask(sessions[left].eager, other))
        assert capturers[left].graphs == graphs, "these are the graphs from before"
    if device.type == "cuda":
        assert all(part.isnan().all() for part in scratch)


def test_fault_14_the_end_of_one_capturer_leaves_anothers_graph_its_bits(device: torch.device) -> None:
    """Matrix products of one thread and stream share a workspace of cuBLAS."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    torch.manual_seed(0)
    weights = [torch.randn(1024, 1024, device=device, dtype=dtype) for _ in range(2)]
    static = torch.randn(1, 1024, device=device, dtype=dtype)
    capturers = [capturer_for(device) for _ in weights]
    graphs = [
        capturer.capture(lambda weight=weight: (static @ weight @ weight,))
        for capturer, weight in zip(capturers, weights, strict=True)
    ]
    expected = static @ weights[1] @ weights[1]
    for graph in graphs:
        graph.replay()
    assert_same_bits(graphs[1].outputs[0], expected)
    del graphs[0], capturers[0], graph
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    static.copy_(static.flip(-1))
    graphs[0].replay()
    assert_same_bits(graphs[0].outputs[0], static @ weights[1] @ weights[1])


# 26: trials of kernels end otherwise in another process


def test_fault_26_every_process_that_opens_a_model_has_empty_caches_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the machine's own caches are full of winners."""
    variables = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
    for name in variables:
        monkeypatch.setenv(name, str(tmp_path))
    (tmp_path / "winner").touch()
    place = Place(tmp_path / "model@0123456789ab" / "device" / "environment" / "protocol")
    write_json(place.folder.parent / "environment.json", {"device": {"id": "cpu"}, "environment": {"key": "0" * 16}})
    seen: list[Path] = []

    @contextmanager
    def hold_gpu(*arguments: Any, **named: Any) -> Iterator[Hold]:
        folders = [Path(os.environ[name]) for name in variables]
        assert not any(folder.exists() for folder in folders)
        seen.extend(folders)
        raise UserError("This is far enough.")
        yield

    monkeypatch.setattr(loaded, "hold_gpu", hold_gpu)
    for _ in range(2):
        with pytest.raises(UserError, match="far enough"), loaded.open_model(place):
            pass
    assert len({*seen, tmp_path}) == 5


COMPILES = """
import sys
from contextlib import nullcontext
from exactgraph.environment.caches import own_caches
with own_caches() if sys.argv[1] == "own" else nullcontext():
    import torch
    from torch._dynamo.utils import counters
    device = torch.device(sys.argv[2])
    torch.compile(lambda x: torch.nn.functional.silu(x) * x)(torch.ones(64, device=device))
    print(counters["inductor"]["fxgraph_cache_hit"], counters["inductor"]["fxgraph_cache_miss"])
"""


@pytest.mark.slow
def test_fault_26_what_one_process_compiled_is_not_taken_over_by_the_next(device: torch.device, tmp_path: Path) -> None:
    if device.type == "cpu" and shutil.which("g++") is None:
        pytest.skip("torch.compile needs a C++ compiler on a CPU")
    variables = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "TRITON_CACHE_DIR": str(tmp_path / "triton")}

    def compiles(caches: str) -> str:
        command = [sys.executable, "-c", COMPILES, caches, str(device)]
        return subprocess.run(command, env=variables, capture_output=True, text=True, check=True, timeout=280).stdout.strip()

    assert [compiles(caches) for caches in ("shared", "shared")] == ["0 1", "1 0"], "a cache that is shared is taken over"
    assert [compiles(caches) for caches in ("own", "own")] == ["0 1", "0 1"]


class Chooses(Candidate):
    """Would choose another kernel each time it was asked."""

    id = "chooses"

    def __init__(self) -> None:
        self.planned, self.installed = 0, []

    def plan(self, model: Any, context: Context) -> Decisions:
        self.planned += 1
        return {"winner": self.planned}

    def install(self, model: Any, decisions: Decisions, context: Context) -> Installation:
        self.installed.append(decisions)
        return Installation()


def test_fault_26_the_plan_fixes_the_winner(
    place: Place, device: torch.device, attention: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Confirmation installs what was planned, and holds no trials of its own."""
    chooses = Chooses()
    monkeypatch.setattr(confirm, "candidate", lambda name: chooses)
    monkeypatch.setattr(fresh_process, "QUESTIONS", {"heldout": fresh_process.QUESTIONS["heldout"]})

    @contextmanager
    def open_model(place: Place) -> Iterator[Any]:
        yield fresh_process.loaded(place.folder, device)

    monkeypatch.setattr(confirm, "open_model", open_model)
    write_json(place.plan_path("chooses"), {"decisions": {"winner": 7}})
    fresh_process.baseline(place.folder, place.folder / "run.json", device, attention, "eager", 1)
    run = read_json(place.folder / "run.json")
    write_json(place.folder / "frozen.json", {"attention": attention, "sets": run["sets"]})
    for _ in range(2):
        confirm.run_one(place.folder, "chooses", place.folder / "attempt.json")
        assert read_json(place.folder / "attempt.json")["status"] == "matched"
    assert chooses.installed == [{"winner": 7}] * 2
    assert chooses.planned == 0
