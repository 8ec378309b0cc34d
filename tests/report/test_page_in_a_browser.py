"""The page as a browser draws it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from made_receipts import Receipt, long_ladder, minicpm5, rehearsal
from PIL import Image

from exactgraph.report.html import html
from exactgraph.report.page import report

NAMES = ("chromium", "chromium-browser", "google-chrome")
GREEN, AMBER, BLUE = (0x14, 0x6C, 0x4A), (0xD9, 0x9A, 0x1C), (0x3B, 0x78, 0xB5)


@pytest.fixture(scope="module")
def chromium() -> str:
    for name in NAMES:
        if found := shutil.which(name):
            return found
    pytest.skip("no Chromium on this machine, so nobody looked at the page (on Debian: apt-get install chromium)")


def drawn(chromium: str, receipt: Receipt, folder: Path) -> dict[tuple[int, int, int], int]:
    """How many pixels of each colour the page has in a tall window."""
    page, picture = folder / "report.html", folder / "page.png"
    page.write_text(html(report([receipt])))
    command = [
        chromium,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        f"--user-data-dir={folder / 'user'}",
    ]
    command += ["--window-size=1200,2400", f"--screenshot={picture}", page.as_uri()]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    with Image.open(picture) as image:
        assert image.size == (1200, 2400)
        colours = image.convert("RGB").getcolors(1 << 24)
    assert colours is not None
    return {colour: count for count, colour in colours}


@pytest.mark.slow
@pytest.mark.parametrize("made", [minicpm5, long_ladder])
def test_verdict_and_plots_are_seen(chromium: str, made: object, tmp_path: Path) -> None:
    assert callable(made)
    colours = drawn(chromium, made(), tmp_path)
    assert len(colours) > 100
    assert 0.02 < 1 - colours[(255, 255, 255)] / (1200 * 2400) < 0.5
    assert colours[GREEN] > 300
    assert colours[BLUE] > 300


@pytest.mark.slow
def test_a_rehearsal_is_seen_to_be_one(chromium: str, tmp_path: Path) -> None:
    colours = drawn(chromium, rehearsal(), tmp_path)
    assert colours[AMBER] > 300
    assert GREEN not in colours
    assert BLUE not in colours
