"""Figures: memory comes back round after round, the checks' cost is a figure, and parts in processes find what they should."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import encdec
import encdec_guided
import encdec_part
import pytest
import torch
from figure_parts import Figures
from tests.figures import checks, memory
from tests.figures.models import deep_llama, optimised

from exactgraph.canonical import digest, write_json
from exactgraph.guidance.processors import ClassifierFree
from exactgraph.runtime.load import load_model
from exactgraph.sources.download import download
from exactgraph.sources.resolve import resolve

CPU = torch.device("cpu")


def level(figures: dict[str, Any]) -> bool:
    """Nothing more after the last round than before the first, but what torch keeps once for each process."""
    return all(figures["after"][name] <= figures["after_two"][name] for name in figures["after"]) and all(
        figures["after"][name] == figures["before"][name] for name in ("graphs", "sessions")
    )


def test_a_hundred_rounds_leave_nothing_behind() -> None:
    figures = memory.rounds(memory.ROUNDS, CPU, layers=2)
    assert level(figures), figures
    assert figures["after"] == figures["before"]


@pytest.mark.gpu
def test_a_hundred_rounds_give_the_gpus_memory_back() -> None:
    figures = memory.rounds(memory.ROUNDS, torch.device("cuda", 0))
    # Beside what was there before, cuBLAS keeps a workspace for the stream of captures.
    assert level(figures), figures


def test_a_round_that_keeps_something_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = []

    def keeping(model: Any, *arguments: Any, **named: Any) -> Any:
        handle = optimised(model, *arguments, **named)
        kept.append(handle.session._installation)
        return handle

    monkeypatch.setattr(memory, "optimised", keeping)
    figures = memory.rounds(6, CPU, layers=2)
    assert not level(figures)
    assert figures["after"]["tensors"] > figures["after_two"]["tensors"]


def test_the_cost_of_the_checks_is_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "deep_llama", lambda device: deep_llama(device, 2))
    monkeypatch.setattr(checks, "_REPETITIONS", 1)
    monkeypatch.setattr(checks, "_PAIRS", 1)
    figures = checks.measure(CPU)
    # The difference of two calls may be noise.
    assert min(value for name, value in figures.items() if not name.startswith("share_of_checks")) > 0


@pytest.fixture
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes on a GPU are those of larger models."""
    monkeypatch.setattr(encdec_part, "default_device", lambda: CPU)


@pytest.fixture(scope="module")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("whisper")
    download(resolve("random:tiny-whisper?seed=0"), root / "model", root / "model.json")
    return root / "model"


@pytest.mark.usefixtures("on_the_cpu")
def test_every_part_of_the_figures_of_speech_models(whisper: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **how: function)  # a compiler takes long, and adds nothing here
    found = {}
    for name in (part for group in encdec.ORDER for part in group):
        found[name] = encdec.PARTS[name](encdec.Part(whisper, tmp_path))
        write_json(tmp_path / f"{name}.json", found[name])
    assert found["timed"]["eager_reproduces"]
    for name in ("greedy", "long"):
        assert found[name]["matches"] == found[name]["of"] > 0
        assert found[name]["logits_equal"] == found[name]["logits_of"]
    for name in ("greedy", "long", "sampled", "guided", "windows"):
        assert found[name]["captured_steps"] > found[name]["eager_steps"] == 0
    for name in encdec.SAMPLED:
        assert found["sampled"][name]["tokens_equal"]
        assert found["sampled"][name]["generator_equal"]
    for name, case in found["guided"]["cases"].items():
        assert all(case[way] for way in ("plain", "on device", "captured")), name
        assert case["changes"] == (not name.startswith("none")), name
        assert (case["steps"] < 16) == (case["ends"] > 100), name
    assert found["windows"]["sequential_matches"] == found["windows"]["equal"] == found["windows"]["of"]
    assert found["encoder"]["ways"]["captured"]["bits_equal"] == found["encoder"]["windows"]
    assert found["timed"]["pairs"] > 0


def test_no_two_windows_are_alike(whisper: Path) -> None:
    sizes = encdec_part.Sizes(tokens=20, short=16, long=20, windows=16, encoded=64, batches=(16, 64))
    model = load_model(whisper, "fp32", CPU)
    heard = [window.heard for window in encdec_part.windows(whisper, "bf16", sizes, model)]
    assert len(set(heard)) == len(heard) == 64


@pytest.mark.usefixtures("on_the_cpu")
def test_a_processor_that_differs_is_found(whisper: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encdec_guided, "ClassifierFree", lambda scale, half: ClassifierFree(scale + 1e-6, half))
    cases = encdec_guided.guided(encdec.Part(whisper, tmp_path))["cases"]
    assert cases["bias, greedy"]["captured"]
    assert cases["guidance, greedy"]["plain"]
    assert not cases["guidance, greedy"]["captured"]
    assert not cases["guidance, greedy"]["on device"]


_SCRIPT = """
import json, sys
folder, _, shared, _, part = sys.argv[1:]
if part == "broken":
    sys.exit(3)
open(f"{shared}/{part}.json", "w").write(json.dumps({"sets": {}} if part == "reference" else {"found": folder}))
"""


def test_parts_run_in_processes_of_their_own(tmp_path: Path) -> None:
    script, shared = tmp_path / "script.py", tmp_path / "shared"
    script.write_text(_SCRIPT)
    shared.mkdir()
    figures = Figures(str(script), "step", "fp32", encdec.Part, {}, (("reference", "broken"), ("other.2",)))
    first, last = figures._all(Path("model"), shared)
    assert first == {"reference": {"traces_digest": digest({"sets": {}})}, "broken": {"failed": 3}}
    assert last == {**first, "other.2": {"found": "model"}}
