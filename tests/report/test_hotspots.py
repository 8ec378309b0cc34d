"""Where the time goes, in both forms of the report and on a terminal."""

from __future__ import annotations

import re
from typing import Any

import made_profiles
from made_receipts import ENDINGS, Receipt, long_ladder, minicpm5, rehearsal, words

from exactgraph.report.hotspots_table import hotspots
from exactgraph.report.html import html
from exactgraph.report.markdown import markdown
from exactgraph.report.page import report


def section(receipt: Receipt) -> str:
    text = markdown(report([receipt]))
    return text[text.index("### Hotspots") :].split("\n### ")[0]


def cells(text: str, name: str) -> list[list[str]]:
    """The rows of a candidate or of a kind, one for each table."""
    lines = [line.strip("| ").replace("`", "").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return [line for line in lines if line[0] == name]


def test_the_step_is_told_in_words() -> None:
    text = section(minicpm5())
    assert "A decode step of eager takes 21.40 ms. The GPU is busy for 2.40 ms (11.2%). It waits for 17.90 ms (83.6%)" in text
    assert "and for 1.10 ms (5.1%) while the host is elsewhere" in text
    assert "A step runs 1,028 kernels, copies and fills, started by 1,028 launches." in text
    receipt = minicpm5()
    receipt["predicate"]["profile"]["gpu"] |= {"launches": 5.0, "graph_launches": 1.5}
    assert "started by 5 launches, 1.5 of them of a graph." in section(receipt)


def test_kinds_stand_in_the_order_of_their_share() -> None:
    text = section(minicpm5())
    table = text[text.index("| kind of work |") :].split("\n\n")[0].splitlines()[2:]
    assert [line.split(" | ")[0].strip("| ") for line in table][:3] == ["projection", "norm", "rotary"]
    assert cells(text, "projection") == [["projection", "linear layers", "31.0%", "169", "1.50 ms", "62.5%"]]
    assert cells(text, "head")[0][4] == "0.125 ms"


def test_candidates_stand_in_the_order_in_which_they_are_built() -> None:
    text = section(long_ladder())
    assert re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)[:5] == ["step", "C023", "C022", "static", "C025"]
    assert cells(text, "step") == [
        ["step", "whole step", "100.0%", "1,028", "2.40 ms", "8.92x", "9.50x", "confirmed"],
        ["step", "1,028 → 1,028", "1,028 → 5", "0 → 1", "2.40 ms → 1.90 ms"],
    ]
    assert cells(text, "static") == [
        ["static", "cache", "0.5%", "48", "0.062 ms", "1.00x", "-", f"not built. {made_profiles.NEVER}"]
    ]
    assert cells(text, "C025")[0][1:6] == ["not known in this layout", "-", "-", "-", "-"]


def test_a_candidate_that_could_not_be_profiled_has_no_after() -> None:
    receipt = minicpm5()
    for candidate in receipt["predicate"]["candidates"].values():
        candidate["measured"]["profile"] = {"failed": "The profiler is missing."}
    text = section(receipt)
    assert "→" not in text
    assert len(cells(text, "step")) == 1


def test_the_page_draws_the_steps() -> None:
    page = html(report([minicpm5()]))
    drawn = page[page.index("<h3>Hotspots</h3>") :]
    figure = words(drawn[drawn.index("<svg") : drawn.index("</svg>")])
    assert "21.40 ms, busy 11%" in figure
    assert "Eager" in figure
    assert "step whole decode step" in figure


def test_a_rehearsal_has_shares_of_the_kinds_alone() -> None:
    text = section(rehearsal())
    assert "Nothing was timed here." in text
    assert cells(text, "projection") == [["projection", "linear layers", "31.0%"]]
    assert cells(text, "step") == []
    assert " ms" not in text


def test_what_was_not_profiled_says_why() -> None:
    assert section(ENDINGS["baseline-unstable"]()).strip().endswith("Eager was not profiled. There is no baseline to profile.")


def lines(profile: dict[str, Any]) -> list[str]:
    text = hotspots(profile)
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 110
    return text.splitlines()


def test_on_a_terminal() -> None:
    profile = made_profiles.profile()
    found = lines(profile)
    assert found[0].startswith("A decode step of eager takes 21.40 ms. The GPU is busy for 2.40 ms (11.2%).")
    rows = [line.split() for line in found]
    assert ["projection", "linear", "layers", "31.0%", "169", "1.50", "ms", "62.5%"] in rows
    assert ["step", "whole", "step", "100.0%", "1,028", "2.40", "ms", "8.92x"] in rows
    named = [row[0] for row in rows if row and row[0] in profile["reach"]]
    assert named == ["step", "C023", "C022", "static", "C025", "static"]
    assert " ".join(found).endswith(f"static is not built. {made_profiles.NEVER}")
    assert "\x1b[" in hotspots(profile, color=True)


def test_a_rehearsal_on_a_terminal() -> None:
    found = lines(made_profiles.rehearsed())
    assert found[0].startswith("Nothing was timed here")
    assert ["projection", "linear", "layers", "31.0%"] in [line.split() for line in found]
    assert not any("whole step" in line for line in found)


def test_no_profile_on_a_terminal() -> None:
    found = made_profiles.unprofiled("failed", "The profiler is missing.")
    assert lines(found) == ["Eager was not profiled. The profiler is missing."]
