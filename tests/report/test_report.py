"""Both forms of the report: what they say, and that they need and run nothing."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml
from made_receipts import COMMITTED, ENDINGS, MINICPM5, Receipt, long_ladder, minicpm5, no_exact, rehearsal, words

from exactgraph.canonical import read_json, short, write_json
from exactgraph.protocol.tasks import GENERATE
from exactgraph.refusal import UserError
from exactgraph.report.html import html
from exactgraph.report.markdown import markdown
from exactgraph.report.page import report
from exactgraph.report.provenance import configuration, place
from exactgraph.stages.report import run
from exactgraph.workflow.config import protocol_for

SECTIONS = [
    "Hotspots",
    "Rejected, refused and failed candidates",
    "Controls",
    "Confirmation",
    "Baseline",
    "Environment",
    "Protocol",
    "How to repeat",
    "How to verify",
]
SPEED = re.compile(r"tok/s|faster|times as|ratio|speed|bandwidth|optimi[sz]ed with|\d+x\b|\binterval", re.IGNORECASE)
VOID = {"meta", "br", "img", "link", "path", "use", "rect"}


class Page(HTMLParser):
    """The elements of a page; complains where they are not closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def both(receipt: Receipt) -> tuple[str, str]:
    document = report([receipt])
    return markdown(document), html(document)


def test_the_ladder_is_printed_as_published() -> None:
    text, page = both(long_ladder())
    printed = text.split("```")[1].strip().splitlines()
    assert printed[0].startswith("Eager baseline                40.00 tok/s   median of 7 processes, 37.58 to 47.05")
    assert printed[1].startswith("C022 MLP graphs               41.94 tok/s   (+11.6%)")
    assert printed[1].endswith("its eager 37.58   30/30 bit-identical")
    assert [line.split()[0] for line in printed[1:]] == ["C022", "C023", "C024", "C025", "C026", "step"]
    assert (
        "| `step` whole decode step | 30/30 | bit-identical | 41.40 | 393.35 | +850.1% | **7.95x** \\[7.32, 8.63\\] | 16.8% |"
        in text
    )
    assert "C024 compound norm + MLP" in words(page)


def test_a_timing_that_was_disturbed_says_so() -> None:
    receipt = minicpm5()
    assert "Noisy" not in both(receipt)[0]
    measured = receipt["predicate"]["candidates"]["step"]["measured"]
    measured["load"] = {"noisy": ["another process used up to 40% of the GPU during the timing"]}
    assert "Noisy timing of `step`: another process used up to 40% of the GPU during the timing." in both(receipt)[0]


def test_what_fell_from_the_ladder_is_marked() -> None:
    text, _ = both(ENDINGS["confirmation-mismatch"]())
    printed = text.split("```")[1].strip().splitlines()
    assert printed[1].endswith("bit-identical   failed")
    assert printed[2].endswith("bit-identical   rejected at confirmation")
    assert "At confirmation, the first other token is at prompt long/0, step 401: 4711, where eager has 812" in text
    assert "Out of memory in a fresh process." in text


def test_figures_of_a_run_whose_controls_failed_are_not_offered() -> None:
    text, page = both(ENDINGS["controls-failed"]())
    assert "### The ladder\n\n> **Not to be relied on**" in text
    assert '<tr class="bad"><td><code>wrong-late</code></td>' in page


@pytest.mark.parametrize("status", ENDINGS)
def test_every_status_renders(status: str) -> None:
    receipt = ENDINGS[status]()
    assert receipt["predicate"]["status"] == status
    text, page = both(receipt)
    label = {"optimized": "OPTIMIZED", "rehearsal": "REHEARSAL on cpu-x86_64"}.get(status, f"NOT OPTIMIZED: {status}")
    assert f"> **{label}**" in text
    assert label in words(page)
    headings = re.findall(r"^### (.*)$", text, re.MULTILINE)
    assert headings[1:10] == SECTIONS
    assert re.findall(r"<h3>(.*?)</h3>", page) == headings
    Page(page)
    assert receipt["predicate"]["sentence"] in words(page)


def test_a_rehearsal_says_so_first_and_last_and_nothing_of_speed() -> None:
    receipt = rehearsal()
    for candidate in receipt["predicate"]["candidates"].values():
        # Not even where somebody timed it all the same.
        candidate["timing"] = minicpm5()["predicate"]["candidates"]["step"]["timing"]
    text, page = both(receipt)
    lines = [line for line in text.splitlines() if line]
    assert lines[1].startswith("> **REHEARSAL on cpu-x86_64** ")
    assert lines[-1] == lines[1]
    assert "Only a run on an NVIDIA GPU gives a receipt that can say optimized." in lines[-1]
    body = page[page.index("<main>") :]
    assert body.index("REHEARSAL") < body.index("<h2>")
    assert body.rindex("REHEARSAL") > body.index("How to verify")
    assert SPEED.findall(text) == []
    assert SPEED.findall(words(page)) == []
    assert "<svg" not in page


def test_a_rehearsal_that_fails_says_both() -> None:
    receipt = rehearsal()
    receipt["predicate"] |= {"status": "no-exact-candidate", "sentence": "No candidate reproduced the baseline."}
    text, _ = both(receipt)
    said = "> **REHEARSAL on cpu-x86_64: no-exact-candidate** No candidate reproduced the baseline. Nothing was timed."
    assert text.count(said) == 2


def test_differences_are_in_words() -> None:
    text, _ = both(no_exact())
    assert (
        "| `step` whole decode step | rejected at validation | 3/6 | 200/384 | At validation, the first other token is at "
        "prompt heldout/2, step 17: 4711, where eager has 812 (there eager's best two logits are 0.125 apart). The first "
        "logits with other bits are at prompt heldout/2, step 3 (there eager's best two logits are 2 apart). |"
    ) in text
    assert "| `C022` MLP graphs | refused | - | - | No layer of this model has the layout that C022 knows. |" in text
    assert "The ladder\n\nNo candidate was timed" in text


def test_what_was_published_is_labelled() -> None:
    text, _ = both(minicpm5())
    section = text[text.index("### Published elsewhere, not measured here") :]
    for figure in ("42.95", "48.87", "63.28", "65.91", "77.92", "78.96", "120.9", "15/30", "RTX 3060"):
        assert figure in section
        assert figure not in text.removesuffix(section)


def test_nothing_is_loaded() -> None:
    for receipt in (minicpm5(), rehearsal()):
        page = html(report([receipt]))
        loading = {"script", "link", "img", "iframe", "object", "embed", "video", "audio", "source", "base", "form", "image"}
        for tag, attributes in Page(page).elements:
            assert tag not in loading
            assert not any(name.startswith("on") for name in attributes)
            for name in ("src", "href", "xlink:href"):
                assert (attributes.get(name) or "#").startswith("#")
        assert "@import" not in page
        assert re.findall(r"url\((?!#)", page) == []
        namespaces = {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
        assert set(re.findall(r"\w+://[^\"'\s<)]+", page)) <= namespaces


def test_ids_are_used_once() -> None:
    identifiers = [attributes["id"] for _, attributes in Page(html(report([long_ladder()]))).elements if "id" in attributes]
    assert identifiers
    assert len(set(identifiers)) == len(identifiers)


def test_texts_stay_texts() -> None:
    receipt = no_exact()
    evil = "<script>alert(1)</script> | `x` **bold** [a](http://b) &amp; \n# heading"
    predicate = receipt["predicate"]
    predicate["candidates"]["C022"]["why"] = evil
    predicate["environment"]["facts"]["<b>fact"] = '"><img src=x onerror=alert(1)>'
    predicate["model"]["source"] = "path:/a`b|c"
    predicate["profile"]["reach"]["C022"]["touches"] = [evil]
    predicate["sentence"] = evil
    text, page = both(receipt)
    tags = {tag for tag, _ in Page(page).elements}
    assert not tags & {"script", "img", "b&gt;"}
    assert words(page).count("&lt;script&gt;alert(1)&lt;/script&gt;") == 3
    assert "<script>" not in text.replace("\\<script\\>", "")
    touching, refused = (line for line in text.splitlines() if line.startswith("| `C022`"))
    assert len(re.findall(r"(?<!\\)\|", touching)) == 9
    assert len(re.findall(r"(?<!\\)\|", refused)) == 6
    assert "\n# heading" not in text


def test_drawings_take_names_as_they_are() -> None:
    receipt = minicpm5()
    candidates = receipt["predicate"]["candidates"]
    candidates["a.$b$_<c>"] = candidates["C022"]
    assert "a.$b$_&lt;c&gt;" in html(report([receipt]))


def test_the_same_receipt_gives_the_same_bytes() -> None:
    assert both(minicpm5()) == both(minicpm5())


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.parents[3].name)
def test_the_configuration_asks_for_the_same_protocol(path: Path) -> None:
    predicate = read_json(path)["predicate"]
    config = yaml.safe_load(configuration(predicate))
    seeded = predicate["model"]["source"].startswith("random:")
    (entry,) = config["models"]
    task = entry["task"] if isinstance(entry, dict) else GENERATE
    assert short(protocol_for(config, config["precision"], False, seeded, task)) == predicate["protocol"]["key"]


def test_so_does_that_of_a_rehearsal() -> None:
    predicate = rehearsal()["predicate"]
    config = {"precision": "auto", **yaml.safe_load(configuration(predicate))}
    assert protocol_for(config, "fp32", True, True) == predicate["protocol"]["whole"]


def test_batches_are_told_and_asked_for_again() -> None:
    receipt = rehearsal()
    assert "Batches of" not in markdown(report([receipt]))
    receipt["predicate"]["protocol"]["whole"]["batches"] = [1, 2, 4]
    assert "Batches of 2, 4 are compared with eager in the same process, and not timed." in markdown(report([receipt]))
    config = {"precision": "auto", **yaml.safe_load(configuration(receipt["predicate"]))}
    assert protocol_for(config, "fp32", True, True)["batches"] == [1, 2, 4]


def test_a_task_is_asked_for_again() -> None:
    predicate = rehearsal()["predicate"]
    predicate["protocol"]["whole"]["task"] = "transcribe"
    asked = yaml.safe_load(configuration(predicate))
    assert asked["models"] == [asked["rehearsal"]["model"]]
    assert asked["models"] == [{"source": predicate["model"]["source"], "task": "transcribe"}]


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.parents[3].name)
def test_the_commands_name_where_the_receipt_lies(path: Path) -> None:
    assert place(read_json(path)).split("/")[1:] == list(path.parts[-5:])


def test_several_receipts_are_one_page() -> None:
    receipts = [read_json(path) for path in COMMITTED]
    text = markdown(report(receipts))
    assert len(re.findall("^## ", text, re.MULTILINE)) == len(receipts)
    assert text.count("Published elsewhere") == 1
    Page(html(report(receipts)))


def test_the_stage_writes_both_files(tmp_path: Path) -> None:
    receipt = tmp_path / "receipt.json"
    write_json(receipt, minicpm5())
    run([receipt], tmp_path / "report")
    assert sorted(path.name for path in (tmp_path / "report").iterdir()) == ["report.html", "report.md"]
    assert (tmp_path / "report" / "report.md").read_text() == both(minicpm5())[0]


def test_what_is_no_receipt_is_refused(tmp_path: Path) -> None:
    other, thin = tmp_path / "other.json", tmp_path / "thin.json"
    write_json(other, {"predicate": {}})
    receipt = minicpm5()
    del receipt["predicate"]["protocol"]["whole"]["warmups"]
    write_json(thin, receipt)
    with pytest.raises(UserError, match="is not a receipt"):
        run([other], tmp_path)
    with pytest.raises(UserError, match="does not hold what a report needs"):
        run([thin], tmp_path)
    with pytest.raises(UserError, match="cannot be read"):
        run([tmp_path / "absent.json"], tmp_path)
    other.write_text(json.dumps([])[:1])
    with pytest.raises(UserError, match="cannot be read"):
        run([other], tmp_path)


def test_the_command_needs_no_torch(tmp_path: Path) -> None:
    source = (
        "import sys; from exactgraph.cli import app\n"
        f"app(['report', {str(MINICPM5)!r}, '--out-dir', {str(tmp_path)!r}], standalone_mode=False)\n"
        "print(*sorted({'torch', 'transformers', 'matplotlib.pyplot'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", source], text=True, capture_output=True, check=True)
    assert done.stdout.strip() == ""
    assert (tmp_path / "report.html").is_file()
