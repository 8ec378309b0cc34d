"""A confirmed configuration in the user's own program: which receipt is taken, what is refused and how that is heard."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confirmed_key
import pytest
import torch
from confirmed_key import Confirmed
from runtime_outputs import EVERYTHING, assert_same

import exactgraph
from exactgraph.candidates.registry import candidate
from exactgraph.canonical import read_json, write_json
from exactgraph.receipts.bundle import export_bundle
from exactgraph.refusal import Refusal
from exactgraph.runtime import fit, optimize
from exactgraph.runtime.guard import Guard
from exactgraph.workflow.stage_digest import stage_files

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(),
    reason="a receipt of a GPU takes timings, which a test cannot rely on; this one is a rehearsal's",
)


@pytest.fixture(scope="module")
def confirmed(tmp_path_factory: pytest.TempPathFactory) -> Confirmed:
    return confirmed_key.make(tmp_path_factory.mktemp("store"), ["C022", "step"])


@pytest.fixture(scope="module")
def as_stored(tmp_path_factory: pytest.TempPathFactory) -> Confirmed:
    """A receipt in the precision that the weights are stored in."""
    return confirmed_key.make(tmp_path_factory.mktemp("bf16"), ["C022"], wanted="bf16")


@pytest.fixture
def model(confirmed: Confirmed) -> Iterator[Any]:
    loaded = confirmed.load()
    yield loaded
    exactgraph.restore(loaded)


def ask(model: Any, tokens: int = 12) -> Any:
    ids = torch.arange(5, 14, device=model.device)[None]
    return model.generate(ids, max_new_tokens=tokens, do_sample=False, **EVERYTHING)


def installed(model: Any, store: Path | None) -> Any:
    with warnings.catch_warnings(action="ignore", category=exactgraph.NotOptimizedWarning):
        assert exactgraph.optimize(model, store, require=True) is model
    return model.exactgraph


def refused(model: Any, store: Path | None, reason: str, words: str) -> None:
    """Heard as a warning and as an error of its own type; the model stays as it was."""
    before = set(vars(model))
    with pytest.raises(exactgraph.NotOptimized, match=words) as caught:
        exactgraph.optimize(model, store, require=True)
    assert caught.value.refusal.reason == reason
    with pytest.warns(exactgraph.NotOptimizedWarning, match=words):
        assert exactgraph.optimize(model, store) is model
    assert reason in repr(model.exactgraph)
    assert model.exactgraph.refusal.reason == reason
    exactgraph.restore(model)
    assert set(vars(model)) == before


def copied(confirmed: Confirmed, tmp_path: Path) -> Path:
    store = tmp_path / "copy"
    shutil.copytree(confirmed.store, store)
    return next(store.glob("*@*/*/*/*/receipt.json"))


def test_the_confirmed_plan_answers_like_eager_until_restored(confirmed: Confirmed, model: Any) -> None:
    expected, untouched = ask(model), set(vars(model))
    handle = installed(model, confirmed.store)
    assert handle.refusal is None
    assert handle.plan.candidate == read_json(confirmed.receipt)["predicate"]["confirmation"]["confirmed"]
    assert handle.last == "no call yet"
    assert_same(ask(model), expected)
    assert re.fullmatch(r"through (C022|step: 11 graph steps, 0 eager)", handle.last)
    assert (handle.counters["calls"], handle.counters["eager_calls"]) == (1, {})
    model.generate(torch.arange(5, 9, device=model.device)[None], max_new_tokens=2, num_beams=2)
    assert sum(handle.counters["eager_calls"].values()) == (1 if handle.plan.candidate == "step" else 0)
    text = repr(handle)
    assert str(confirmed.receipt) in text
    assert handle.plan.candidate in text
    assert all(len(line) < 250 for line in text.splitlines())
    assert exactgraph.restore(model) is model
    assert set(vars(model)) == untouched
    assert_same(ask(model), expected)


def test_an_eager_call_is_logged_once_aloud(
    confirmed: Confirmed, model: Any, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    handle = installed(model, confirmed.store)
    caplog.clear()
    for _ in range(2):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            ask(model)
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert said == ["generate runs eager: Autocast is on; captured work runs without it."]
    assert handle.last == "eager (autocast): Autocast is on; captured work runs without it."
    assert list(handle.counters["eager_calls"].values()) == [2]
    assert capfd.readouterr().out == ""


def test_what_runs_in_a_users_program_prints_nothing() -> None:
    for room in ("runtime", "candidates", "models", "capture"):
        for path in sorted((Path(optimize.__file__).parents[1] / room).glob("*.py")):
            called = {node.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name)}
            assert "print" not in called, f"{path} prints; logging is for the user to direct."


def test_the_self_check_is_quick(confirmed: Confirmed, model: Any) -> None:
    # The best of three: other work may hold the machine.
    assert min(installed(model, confirmed.store).check_seconds for _ in range(3)) < 0.5


def test_a_block_gives_the_model_back(confirmed: Confirmed, model: Any) -> None:
    def block() -> None:
        with exactgraph.optimized(model, confirmed.store, require=True) as same:
            assert same is model
            assert same.exactgraph.refusal is None
            raise ZeroDivisionError

    untouched = set(vars(model))
    with warnings.catch_warnings(action="ignore"), pytest.raises(ZeroDivisionError):
        block()
    assert set(vars(model)) == untouched


def test_restoring_lets_go_of_everything(confirmed: Confirmed, model: Any) -> None:
    handle = installed(model, confirmed.store)
    ask(model)
    kept = [weakref.ref(part) for part in (handle.session._installation, handle.capturer, handle.session)]
    del handle
    exactgraph.restore(model)
    assert [reference() for reference in kept] == [None] * 3


def test_a_second_call_installs_anew(confirmed: Confirmed, model: Any) -> None:
    first = installed(model, confirmed.store)
    second = installed(model, confirmed.store)
    assert first is not second
    assert model.generate == second.session.generate


def test_one_thread_optimises_and_others_generate(confirmed: Confirmed, model: Any) -> None:
    expected, answers = ask(model), []
    maker = threading.Thread(target=installed, args=(model, confirmed.store))
    maker.start()
    maker.join()
    askers = [threading.Thread(target=lambda: answers.append(ask(model))) for _ in range(3)]
    for thread in askers:
        thread.start()
    for thread in askers:
        thread.join()
    assert len(answers) == 3
    for answer in answers:
        assert_same(answer, expected)
    assert model.exactgraph.counters["eager_calls"] == {}


def test_a_rehearsal_says_that_nothing_is_faster(confirmed: Confirmed, model: Any) -> None:
    with pytest.warns(exactgraph.NotOptimizedWarning, match=r"rehearsal on a CPU: .* nothing is faster"):
        exactgraph.optimize(model, confirmed.store)


def test_artifacts_of_the_current_folder_come_first_then_the_users_own(
    confirmed: Confirmed, model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    refused(model, None, "no-receipt", r"snakemake --cores 1 confirm.* exactgraph import FILE .*data/exactgraph/receipts")
    (tmp_path / "data" / "exactgraph").mkdir(parents=True)
    os.symlink(confirmed.store, tmp_path / "data" / "exactgraph" / "receipts")
    assert "data" in installed(model, None).receipt.parts
    os.symlink(confirmed.store, tmp_path / "artifacts")
    assert "artifacts" in installed(model, None).receipt.parts


def test_a_receipt_can_be_named(confirmed: Confirmed, model: Any) -> None:
    assert installed(model, confirmed.receipt).receipt == confirmed.receipt
    assert installed(model, confirmed.receipt.parent).receipt == confirmed.receipt


def test_weights_as_stored_need_no_stored_copy(as_stored: Confirmed, tmp_path: Path) -> None:
    model, bundle = as_stored.load(), tmp_path / "receipt.bundle"
    export_bundle(as_stored.receipt, bundle)
    expected = ask(model)
    assert installed(model, bundle).plan.candidate == "C022"
    assert_same(ask(model), expected)
    exactgraph.restore(model)


def test_converted_weights_need_the_stored_ones(confirmed: Confirmed, model: Any, tmp_path: Path) -> None:
    export_bundle(confirmed.receipt, tmp_path / "bundle")
    refused(model, tmp_path / "bundle", "other-weights", "stored in bf16 do, and .* is not there to convert those")


def test_a_bundle_without_the_prompts_cannot_be_checked(as_stored: Confirmed, tmp_path: Path) -> None:
    model = as_stored.load()
    model.config._name_or_path = "nobody/nothing"
    export_bundle(as_stored.receipt, tmp_path / "bundle")
    refused(model, tmp_path / "bundle", "self-check", "could not be checked")


@pytest.mark.parametrize("name", ["model.layers.1.mlp.down_proj.weight", "model.norm.weight"])
def test_other_weights_are_refused(confirmed: Confirmed, as_stored: Confirmed, name: str) -> None:
    for key in (confirmed, as_stored):
        model = key.load()
        with torch.no_grad():
            model.get_parameter(name).view(-1)[0] += 1
        refused(model, key.store, "other-weights", "are not those of random-tiny-llama-seed0@")


def test_stored_weights_that_were_altered_prove_nothing(confirmed: Confirmed, model: Any, tmp_path: Path) -> None:
    receipt = copied(confirmed, tmp_path)
    stored = next((receipt.parents[3] / "model").glob("*.safetensors"))
    content = bytearray(stored.read_bytes())
    content[-1] ^= 1
    stored.write_bytes(content)
    refused(model, receipt, "other-weights", "are not what was proved: .* has the SHA-256")


def _in_training(model: Any) -> None:
    model.train()


def _other_attention(model: Any) -> None:
    model.set_attn_implementation("eager")


def _other_revision(model: Any) -> None:
    model.config._name_or_path = "random:tiny-llama?seed=0"
    model.config._commit_hash = "f" * 40


def _other_precision(model: Any) -> None:
    model.to(torch.float64)


def _hook(model: Any) -> None:
    model.model.norm.register_forward_hook(lambda module, inputs, output: None)


@pytest.mark.parametrize(
    ("change", "reason", "words"),
    [
        (_in_training, "training", r"model\.eval\(\)"),
        (_other_attention, "other-attention", "of attention sdpa, and the model has eager"),
        (_other_revision, "other-revision", "of revision .* is f{12}: load that revision"),
        (_other_precision, "other-precision", "in torch.float64: load it with dtype="),
        (_hook, "hooks", r"model\.norm has a hook"),
    ],
)
def test_another_model_is_refused(confirmed: Confirmed, model: Any, change: Any, reason: str, words: str) -> None:
    change(model)
    refused(model, confirmed.store, reason, words)


@pytest.mark.parametrize(
    ("where", "value", "reason", "words"),
    [
        (
            ("device", "id"),
            "nvidia-h200-sm90-132sm-141g",
            "other-device",
            "of nvidia-h200-sm90-132sm-141g, and the model is on",
        ),
        (("status",), "not-faster", "not-optimized", "says not-faster: .* exactgraph table"),
        (("environment", "facts", "torch"), "2.0.0", "other-environment", "torch was 2.0.0 and is 2"),
        (("model", "code"), {"events.py": "0" * 64}, "other-model", "of other code of the class LlamaForCausalLM"),
        (("sentence",), "Twice as fast.", "unverified", "does not verify: the evidence gives another receipt"),
    ],
)
def test_a_receipt_of_something_else_is_refused(
    confirmed: Confirmed, model: Any, tmp_path: Path, where: tuple[str, ...], value: Any, reason: str, words: str
) -> None:
    receipt = copied(confirmed, tmp_path)
    statement = read_json(receipt)
    inner = statement["predicate"]
    for name in where[:-1]:
        inner = inner[name]
    inner[where[-1]] = value
    write_json(receipt, statement)
    refused(model, receipt, reason, words)


def test_altered_evidence_is_refused(confirmed: Confirmed, model: Any, tmp_path: Path) -> None:
    receipt = copied(confirmed, tmp_path)
    frozen = read_json(receipt.with_name("frozen.json"))
    frozen["sets"]["heldout"][0]["logits"][0] = "0" * 64
    write_json(receipt.with_name("frozen.json"), frozen)
    refused(model, receipt, "unverified", r"evidence file frozen\.json is not the one")


def test_flags_and_threads_of_this_process_are_part_of_the_environment(confirmed: Confirmed, model: Any) -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        refused(model, confirmed.store, "other-environment", "flag deterministic was False and is True")
    finally:
        torch.use_deterministic_algorithms(False)
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        refused(model, confirmed.store, "other-environment", f"threads was {threads} and is {threads + 1}")
    finally:
        torch.set_num_threads(threads)


def test_another_exactgraph_is_refused(confirmed: Confirmed, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit, "stage_digest", lambda stage, name: "0" * 16)
    refused(model, confirmed.store, "other-code", "made by another exactgraph")


def test_the_self_check_refuses_another_bit(confirmed: Confirmed, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimize, "candidate", lambda name: candidate("wrong-ulp"))
    refused(model, confirmed.store, "self-check", r"left the recorded baseline at prompt heldout/0, step \d \(logits\)")


def test_the_self_check_wants_the_candidate_at_work(confirmed: Confirmed, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Guard, "refusal", lambda self: Refusal("hooks", "There is a hook."))
    refused(model, confirmed.store, "self-check", r"did not serve its first call: There is a hook\.")


def test_nothing_is_captured_under_autocast(confirmed: Confirmed, model: Any) -> None:
    with torch.autocast(model.device.type, dtype=torch.bfloat16):
        refused(model, confirmed.store, "autocast", "Autocast is on")


def test_the_self_check_leaves_the_configuration_of_generation_alone(confirmed: Confirmed, model: Any) -> None:
    first = read_json(confirmed.receipt.with_name("frozen.json"))["sets"]["heldout"][0]["tokens"][0]
    own = model.generation_config
    own.eos_token_id = first
    installed(model, confirmed.store)
    assert model.generation_config is own
    assert own.eos_token_id == first


def test_the_package_is_imported_without_torch_and_without_the_stages_coming_to_depend_on_it() -> None:
    code = "import sys, exactgraph; dir(exactgraph); exactgraph.NotOptimized; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code + "; exactgraph.optimize"], check=True)
    with pytest.raises(AttributeError, match="no attribute 'optimise'"):
        _: Callable[..., Any] = exactgraph.optimise
    for stage in ("baseline", "build", "validate", "confirm"):
        names = {path.name for path in stage_files(stage)}
        assert not names & {"optimize.py", "selfcheck.py", "store.py", "handle.py"}, stage
