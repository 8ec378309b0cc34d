"""Faults of the project's list that have to do with another machine, another library or another place of the weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from runtime_models import make_llama, prompt
from runtime_outputs import ask, assert_same, refusal_of, steps_of
from sessions import open_session
from transformers import LlamaForCausalLM

import exactgraph
from exactgraph.candidates.base import Context
from exactgraph.candidates.registry import candidate
from exactgraph.canonical import read_json
from exactgraph.capture import capturer_for
from exactgraph.refusal import Refused
from exactgraph.runtime import choose
from exactgraph.runtime.guard import around
from exactgraph.runtime.here import Here
from exactgraph.runtime.session import Session

CPU = torch.device("cpu")
#: Receipts that were measured on a GPU.
RECEIPTS = sorted((Path(__file__).parents[2] / "docs" / "evidence").glob("*/*@*/*/*/*/receipt.json"))


@pytest.fixture(params=RECEIPTS, ids=lambda path: path.parents[3].name.partition("@")[0])
def receipt(request: pytest.FixtureRequest) -> Path:
    assert RECEIPTS
    path: Path = request.param
    return path


def refused_in(monkeypatch: pytest.MonkeyPatch, receipt: Path, **elsewhere: Any) -> Any:
    """How a model hears of ``receipt`` where everything is as the receipt says but for ``elsewhere``; it stays eager."""
    predicate = read_json(receipt)["predicate"]
    place = {
        "device": predicate["device"]["id"],
        "facts": predicate["environment"]["facts"],
        "precision": predicate["precision"],
    }
    monkeypatch.setattr(choose, "here", lambda model: Here(**{**place, **elsewhere}))
    model = make_llama(CPU)
    expected = ask(model.generate, prompt(CPU, 9), 6)
    with pytest.warns(exactgraph.NotOptimizedWarning):
        exactgraph.optimize(model, receipt)
    with pytest.raises(exactgraph.NotOptimized) as caught:
        exactgraph.optimize(make_llama(CPU), receipt, require=True)
    assert caught.value.refusal == model.exactgraph.refusal
    assert "generate" not in vars(model)
    assert_same(ask(model.generate, prompt(CPU, 9), 6), expected)
    return model.exactgraph.refusal


@pytest.mark.parametrize("other", ["nvidia-a100-sm80-108sm-80g", "nvidia-h200-sm90-132sm-141g-mig-1g.18gb", "cpu-x86_64"])
def test_fault_4_a_receipt_of_another_gpu_is_refused(monkeypatch: pytest.MonkeyPatch, receipt: Path, other: str) -> None:
    refusal = refused_in(monkeypatch, receipt, device=other)
    assert refusal.reason == "other-device"
    assert f"is of {read_json(receipt)['predicate']['device']['id']}, and the model is on {other}." in refusal.sentence
    assert "snakemake --cores 1 confirm" in refusal.sentence


@pytest.mark.parametrize("library", ["transformers", "torch", "cublas", "driver"])
def test_fault_24_a_receipt_under_another_version_is_refused(
    monkeypatch: pytest.MonkeyPatch, receipt: Path, library: str
) -> None:
    facts = read_json(receipt)["predicate"]["environment"]["facts"]
    refusal = refused_in(monkeypatch, receipt, facts={**facts, library: "0.1"})
    assert refusal.reason == "other-environment"
    assert f"{library} was {facts[library]} and is 0.1." in refusal.sentence


def test_where_device_and_versions_are_equal_something_else_decides(monkeypatch: pytest.MonkeyPatch, receipt: Path) -> None:
    assert refused_in(monkeypatch, receipt).reason not in ("other-device", "other-environment")


def test_fault_11_the_current_gpu_is_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Emulated, for machines with less than two GPUs."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    refusal = around(torch.device("cuda", 1))
    assert refusal is not None
    assert refusal.reason == "current-device"
    assert "The current GPU is 0 and the model is on cuda:1" in refusal.sentence
    assert around(torch.device("cuda", 0)) is None


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="less than two GPUs on this machine")
@pytest.mark.parametrize("name", ["step", "C022"])
def test_fault_11_a_model_on_the_second_gpu(name: str) -> None:
    second = torch.device("cuda", 1)
    llama, ids = make_llama(second), prompt(second, 12)
    context = Context(capturer_for(second), 64, 24, 64)

    def opened() -> Session:
        return open_session(llama, name, context, "flash")

    assert torch.cuda.current_device() == 0
    with pytest.raises(Refused, match="The current GPU is 0 and the model is on cuda:1"):
        opened()
    with torch.cuda.device(1):
        session = opened()
        got = ask(llama.generate, ids)
        assert session.last is not None
        assert session.last.refusal is None
        assert_same(got, ask(session.eager, ids))
    got = ask(llama.generate, ids)
    assert refusal_of(session) == "current-device"
    assert_same(got, ask(session.eager, ids))
    session.close()


@pytest.fixture
def offloaded(tmp_path: Path) -> Any:
    """A model with a layer on the disk, as ``device_map`` puts it there."""
    pytest.importorskip("accelerate")
    make_llama(CPU).save_pretrained(tmp_path / "model")
    places = {"model.embed_tokens": "cpu", "model.norm": "cpu", "model.rotary_emb": "cpu", "lm_head": "cpu"}
    layers = {f"model.layers.{number}": "disk" if number == 1 else "cpu" for number in range(3)}
    model = LlamaForCausalLM.from_pretrained(
        tmp_path / "model", device_map={**places, **layers}, offload_folder=tmp_path / "offload", dtype=torch.float32
    )
    model.generation_config.eos_token_id = None
    assert "disk" in model.hf_device_map.values()
    return model


@pytest.mark.parametrize("name", ["step", "C022"])
def test_fault_19_a_device_map_with_offload_is_refused(offloaded: Any, name: str) -> None:
    context, chosen = Context(capturer_for(CPU), 64, 24, 64), candidate(name)
    with pytest.raises(Refused) as caught:
        Session(offloaded, chosen, {"lengths": 64, "capacity": 64}, context, "default")
    assert caught.value.refusal.reason == "hooks"
    assert "generate" not in vars(offloaded)


def test_fault_19_optimize_says_so_and_the_model_goes_on(offloaded: Any) -> None:
    ids = prompt(CPU, 9)
    expected = ask(offloaded.generate, ids, 6)
    with pytest.warns(exactgraph.NotOptimizedWarning, match="has a hook or a replaced forward"):
        exactgraph.optimize(offloaded, RECEIPTS[0])
    assert offloaded.exactgraph.refusal.reason == "hooks"
    assert_same(ask(offloaded.generate, ids, 6), expected)


@pytest.mark.parametrize("how", ["cpu_offload", "dispatch_model"])
def test_fault_19_offloading_after_installation_runs_eager(how: str) -> None:
    accelerate = pytest.importorskip("accelerate")
    llama, ids = make_llama(CPU), prompt(CPU, 9)
    context, chosen = Context(capturer_for(CPU), 64, 24, 64), candidate("step")
    with Session(llama, chosen, chosen.plan(llama, context), context, "default") as session:
        expected = ask(llama.generate, ids, 6)
        assert steps_of(session) == (5, 0)
        if how == "cpu_offload":
            accelerate.cpu_offload(llama, execution_device=CPU)
        else:
            accelerate.dispatch_model(llama, {"": "cpu"}, main_device="cpu", force_hooks=True)
        got = ask(llama.generate, ids, 6)
        assert refusal_of(session) == "hooks"
        assert_same(got, expected)
