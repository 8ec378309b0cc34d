"""Tests marked ``gpu`` are skipped, and counted aloud, on a machine without an NVIDIA GPU."""

from __future__ import annotations

import pytest

from exactgraph.environment import nvml

_REASON = "no NVIDIA GPU on this machine"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not nvml.visible(nvml.gpus()):
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason=_REASON))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = sum(_REASON in str(report.longrepr) for report in terminalreporter.stats.get("skipped", []))
    if skipped:
        terminalreporter.write_line(
            f"{skipped} GPU tests were not run: {_REASON} (make test-gpu runs them where there is one)."
        )
