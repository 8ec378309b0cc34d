"""Tests marked ``gpu`` are skipped, and counted aloud, on a machine without an NVIDIA GPU; ``gpu(2)`` needs two of them."""

from __future__ import annotations

import pytest

from exactgraph.environment import nvml

_REASONS = {1: "no NVIDIA GPU on this machine", 2: "no two NVIDIA GPUs on this machine"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    there = len(nvml.visible(nvml.gpus()))
    for item in items:
        marker = item.get_closest_marker("gpu")
        needed = 0 if marker is None else marker.args[0] if marker.args else 1
        if there < needed:
            item.add_marker(pytest.mark.skip(reason=_REASONS[needed if there else 1]))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = terminalreporter.stats.get("skipped", [])
    for reason in _REASONS.values():
        skipped = sum(reason in str(report.longrepr) for report in reports)
        if skipped:
            terminalreporter.write_line(
                f"{skipped} GPU tests were not run: {reason} (make test-gpu runs them where there are)."
            )
