"""The report's rule: its pages under ``snakemake --report``, and that a half-made one is made again."""

from __future__ import annotations

import base64
import json
import re

import pytest
from project import Project


def test_a_lost_page_is_written_again(finished: Project) -> None:
    finished.find("report/report.md").unlink()
    finished.run()
    assert finished.ran() == {"report"}
    assert finished.find("report/report.md").is_file()


@pytest.mark.slow
def test_a_report_that_fails_leaves_the_receipt_and_is_tried_again(finished: Project) -> None:
    before = finished.find("receipt.json").read_bytes()
    finished.edit("stages/report.py")
    finished.machine(trouble={"report": "fail"})
    finished.run(code=1)
    assert finished.find("receipt.json").read_bytes() == before
    finished.machine(trouble={})
    finished.run()
    assert finished.ran() == {"report"}


@pytest.mark.slow
def test_the_page_and_its_caption_are_in_the_workflows_report(finished: Project) -> None:
    page = finished.find("report/report.html").read_text()
    finished.run("--report", "workflow.html", "confirm")
    assert finished.ran() == set()
    found = (finished.folder / "workflow.html").read_text()
    (results,) = re.findall(r"^\s*var results = (\{.+\});$", found, re.MULTILINE)
    (result,) = json.loads(results).values()
    assert base64.b64decode(result["data_uri"].partition("base64,")[2]).decode() == page
    assert "against unmodified eager" in " ".join(result["caption"].split())
    assert result["labels"]["model"] == "pypi-tiny-1"
    assert not re.findall(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=[\"']https?://", found)
