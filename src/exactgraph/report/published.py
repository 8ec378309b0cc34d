"""What the study that exactgraph follows published, of another machine; never mixed with the figures of a receipt."""

from __future__ import annotations

from exactgraph.report.document import Block, Heading, Paragraph, Row, Table

_EAGER = 42.95
_PUBLISHED = (
    ("Eager baseline", _EAGER, "-", "-", ""),
    ("C022 MLP graphs", 48.87, "+13.0%", "-", ""),
    ("C023 fixed decode graphs", 63.28, "+46.3%", "-", ""),
    ("C024 compound norm + MLP", 65.91, "+52.5%", "-", ""),
    ("C025 grouped norm + QKV", 77.92, "+80.1%", "-", ""),
    ("C026 shared prefill norm", 78.96, "+82.6%", "30/30", ""),
    ("torch.compile, rejected there", 120.9, "-", "15/30", "bad"),
)


def published() -> list[Block]:
    """A small table that says whose figures these are."""
    rows = [
        Row(((name,), (f"{rate:g}",), (gain,), ("-" if rate == _EAGER else f"{rate / _EAGER - 1:+.1%}",), (answers,)), tone)
        for name, rate, gain, answers, tone in _PUBLISHED
    ]
    columns = ("published configuration", "tok/s", "gain as printed", "quotient of rates", "equal answers")
    return [
        Heading(3, "Published elsewhere, not measured here"),
        Paragraph(
            (
                "The study that this ladder follows ran openbmb/MiniCPM5-1B in bf16, batch 1, greedy, on an NVIDIA RTX 3060. "
                "Figures are quoted from its text; no receipt stands behind them, and none of them was measured by this run.",
            )
        ),
        Table(columns, tuple(rows), frozenset({1, 2, 3, 4})),
        Paragraph(
            (
                "The printed gains are not the quotients of the printed rates; both are shown. "
                "For the rungs before C026 the text gives no count of equal answers.",
            ),
            quiet=True,
        ),
    ]
