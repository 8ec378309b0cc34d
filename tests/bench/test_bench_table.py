"""The table of a bench, from figures made by hand."""

from __future__ import annotations

from typing import Any

from exactgraph.bench.rows import blank
from exactgraph.bench.table import WIDTH, table

FIGURES = {"tok_s": 12345.6, "gb_s": 3456.7, "share_of_floor": 0.789, "peak_mib": 12345.6}
TIMED = {
    **FIGURES,
    "status": "exact",
    "grade": "token-identical",
    "matches": 300,
    "of": 300,
    "ratio": 12.345,
    "interval": [11.9, 12.8],
    "first_token_ms": {"eager": 123.4, "candidate": 122.2},
    "capture_s": 123.45,
    "graphs": 1024,
    "graph_mib": 4321.0,
}


def result(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "model": {"name": "random-minicpm5-1b-seed0@8adaa0475198"},
        "device": {"id": "nvidia-h200-sm90-132sm-141g", "name": "NVIDIA H200"},
        "protocol": {
            "dtype": "bf16",
            "prompts": [{}] * 6,
            "prompt_set": "heldout",
            "new_tokens": 64,
            "repetitions": 5,
            "attention": "flash",
            "confidence": 0.99,
        },
        "emulated": False,
        "floor": {"copy_bytes_s": 4.3e12},
        "eager": {**FIGURES, "first_token_ms": 123.4, "reproduces": True, "difference": None},
        "rows": rows,
    }


def test_wide_figures_fit_uncut() -> None:
    text = table(result([blank("wrong-late") | TIMED, blank("C022") | TIMED]))
    assert max(map(len, text.splitlines())) <= WIDTH
    assert "…" not in text
    for cell in ("token-identical", "300/300", "12345.6", "12.35 [11.90, 12.80]", "3457", "78.9%", "122.2", "123.45", "4321"):
        assert cell in text, cell
    assert "99% interval" in text
    assert "4300 GB/s here" in text


def test_a_reason_is_cut_and_colours_are_for_terminals_only() -> None:
    row = blank("step") | {"status": "failed", "why": "RuntimeError: " + "word " * 200}
    text = table(result([row]))
    assert "RuntimeError: word" in text
    assert len(text) < 2500
    assert "\x1b" not in text
    assert "\x1b[" in table(result([row]), color=True)
