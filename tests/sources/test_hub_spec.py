"""Hub specs: what is understood, what is refused, and names in paths that never meet."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from exactgraph.refusal import UserError
from exactgraph.sources.spec import HubSource, parse, slug


def test_known_specs() -> None:
    assert parse("hub:openbmb/MiniCPM5-1B") == parse("hub:openbmb/MiniCPM5-1B@main")
    assert parse("hub:openbmb/MiniCPM5-1B@v1.0") == HubSource("openbmb/MiniCPM5-1B", "v1.0")
    assert parse("hub:a/b@refs/pr/1") == HubSource("a/b", "refs/pr/1")


@pytest.mark.parametrize(
    "rest",
    ["", "openbmb", "openbmb/", "/x", "a/b/c", "a/b@", "a/b@x y", "a/../b", "a/b@..", "a/b--c", "a/b.git", "a/b?x=1", "-a/b"],
)
def test_refused_specs(rest: str) -> None:
    with pytest.raises(UserError, match="write 'hub:OWNER/NAME' or 'hub:OWNER/NAME@REVISION'"):
        parse(f"hub:{rest}")


def test_slugs() -> None:
    assert slug("hub:openbmb/MiniCPM5-1B") == slug("hub:openbmb/MiniCPM5-1B@main") == "hub-openbmb-minicpm5-1b"
    assert re.fullmatch("hub-openbmb-minicpm5-1b-v1.0-[0-9a-f]{8}", slug("hub:openbmb/MiniCPM5-1B@v1.0"))
    rests = ["a/b-c", "a-b/c", "a/b_c", "a_b/c", "a/b@c", "a/b@C", "a/b-c@d", "a/b@c-d", "a/b@c/d", "a/b", "a/b@" + "0" * 40]
    slugs = [slug(f"hub:{rest}") for rest in rests]
    assert len(set(slugs)) == len(slugs)
    assert all(re.fullmatch(r"hub-[a-z0-9][a-z0-9.-]*", each) for each in slugs), slugs


def test_a_spec_needs_no_hub_library() -> None:
    code = (
        "import sys; from exactgraph.sources.spec import slug; import exactgraph.sources.resolve; slug('hub:a/b');"
        "print([m for m in ('torch', 'numpy', 'transformers', 'huggingface_hub') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
