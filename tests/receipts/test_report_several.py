"""What a person reads of batches and of windows of a speech model."""

from __future__ import annotations

import yaml
from evidence_world import World
from test_receipt_batches import in_batches
from test_report_table import lines
from window_records import other_bits, with_windows

from exactgraph.receipts.statement import derive
from exactgraph.report.html import html
from exactgraph.report.markdown import markdown
from exactgraph.report.page import report
from exactgraph.report.provenance import configuration
from exactgraph.workflow.config import protocol_for


def page(world: World) -> str:
    receipt = derive(world.write())
    html(report([receipt]))
    return markdown(report([receipt]))


def section(text: str, title: str) -> list[list[str]]:
    """The rows of the table under a heading."""
    body = text.partition(f"### {title}\n")[2].partition("\n#")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in body.splitlines() if line.startswith("|")]


def test_nothing_is_said_of_what_was_not_asked(world: World) -> None:
    text = page(world) + "\n".join(lines(world))
    assert "in one call" not in text
    assert "Windows" not in text


def test_batches_are_told(world: World) -> None:
    in_batches(world)
    told = world.confirmations[1]["batches"][1]
    told |= {"served": False, "why": "Steps are captured for batches of 1, 2; this call has 4 sequences."}
    assert "Sequences in one call with step: 2 (12/12 equal, captured), 4 (24/24 equal, eager)." not in lines(world)
    assert "Sequences in one call with step: 2 (6/6 equal, captured), 4 (12/12 equal, eager)." in lines(world)
    rows = section(page(world), "Sequences in one call")
    assert rows[2][:2] == ["2", "6/6"]
    assert rows[3][3] == told["why"]


def test_windows_are_told_with_what_they_took(world: World) -> None:
    with_windows(world)
    assert (
        "Windows with step: eager's encoder in batches of 4 (bit-identical), then decoded 2 windows in one call. 4 windows "
        "took 1.000 s to encode (eager 4.000 s) and 2.500 s to decode (one after the other 3.000 s)."
    ) in " ".join(lines(world))
    rows = section(page(world), "Windows ahead of decoding")
    assert rows[0][4] == "seconds for 4"
    assert rows[2] == ["eager's encoder, one window at a time", "bit-identical", "4/4, 8/8", "4/4, 8/8", "4.000", "", "-"]
    assert rows[4][0:2] == ["eager's encoder in batches of 4", "bit-identical"]
    assert [row[5] for row in rows[2:]] == ["", "", "yes", "", "yes"]
    assert rows[6][6].startswith("Steps are captured for batches of 1")


def test_a_lower_grade_at_confirmation_is_told(world: World) -> None:
    other_bits(with_windows(world).confirmations[1]["windows"], "long", token=True)
    rows = section(page(world), "Windows ahead of decoding")
    assert rows[4][:4] == ["eager's encoder in batches of 4", "bit-identical, -", "4/4, 7/8", "4/4, 7/8"]
    assert [row[5] for row in rows[2:]] == ["", "yes", "", "", "yes"]


def test_a_rehearsal_says_nothing_of_seconds(rehearsal: World) -> None:
    with_windows(rehearsal)
    text = page(rehearsal).partition("### Windows ahead of decoding")[2].partition("\n#")[0]
    assert "batches of 4" in text
    assert "second" not in text
    assert " took" not in text
    told = "\n".join(lines(rehearsal))
    assert "Windows with step" in told
    assert " took" not in told


def test_windows_are_asked_for_again(world: World) -> None:
    predicate = derive(with_windows(world).write())["predicate"]
    config = {"precision": "auto", "rehearsal": {}, **yaml.safe_load(configuration(predicate))}
    assert protocol_for(config, "bf16", False, True, "transcribe")["windows"] == world.protocol["windows"]
