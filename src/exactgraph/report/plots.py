"""Drawings of a ladder and its steps as SVG elements. Only this module imports matplotlib; settings hold for one drawing."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from io import StringIO
from typing import Any, cast

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

_WIDTH, _ROW, _FRAME = 9.6, 0.52, 0.8  # inches
_COLOURS = {"confirmed": "#1b8a5f", "ranked": "#3b78b5", "mismatch": "#b8463d"}
_OTHER, _EAGER, _INK, _GRID = "#8c99a6", "#c3ccd5", "#1c2733", "#e4e9ee"
_SETTINGS: dict[str, Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 10,
    "text.color": _INK,
    "text.parse_math": False,
    "axes.edgecolor": _GRID,
    "axes.labelcolor": "#5b6b7b",
    "xtick.color": "#5b6b7b",
    "ytick.color": _INK,
}
_TICKS = (0.1, 0.2, 0.5, 0.8, 0.9, 1, 1.1, 1.2, 1.5, 2, 3, 4, 5, 7, 10, 15, 20, 30, 50, 100, 200, 500, 1000)


@dataclass(frozen=True)
class Bar:
    """A timed candidate: decode tokens a second of eager and of the candidate, and the ratio of whole calls."""

    name: str
    verdict: str
    eager: float
    rate: float
    ratio: float
    low: float
    high: float


@dataclass(frozen=True)
class StepBar:
    """One decode step, in milliseconds: all of it, and what of it the GPU is busy."""

    name: str
    step: float
    busy: float


def rates(bars: list[Bar]) -> str:
    """Tokens a second of each candidate over that of eager in the same process."""

    def draw(axes: Axes) -> None:
        reach = max(max(bar.rate * bar.high / bar.ratio, bar.eager) for bar in bars)
        for place, bar in enumerate(bars):
            low, high = bar.rate * bar.low / bar.ratio, bar.rate * bar.high / bar.ratio
            axes.barh(place - 0.17, bar.rate, height=0.36, color=_colour(bar))
            axes.barh(place + 0.2, bar.eager, height=0.26, color=_EAGER)
            axes.plot([low, high], [place - 0.17] * 2, color=_INK, linewidth=1.3, marker="|", markersize=7)
            axes.text(max(high, bar.rate) + reach * 0.015, place - 0.17, f"{bar.rate:.1f}", va="center", weight="bold")
            axes.text(
                bar.eager + reach * 0.015, place + 0.22, f"eager {bar.eager:.1f}", va="center", color="#5b6b7b", size=8.5
            )
        axes.set_xlim(0, reach * 1.14)
        axes.set_xlabel("decode tokens a second")

    return _svg("rates", [bar.name for bar in bars], draw)


def ratios(bars: list[Bar]) -> str:
    """The ratio to eager of each candidate with its interval, on a logarithmic axis, against 1."""

    def draw(axes: Axes) -> None:
        low, high = min(1.0, *(bar.low for bar in bars)), max(1.0, *(bar.high for bar in bars))
        margin = max(math.log(high / low) * 0.08, 0.02)
        left, right = low * math.exp(-margin), high * math.exp(2.6 * margin)
        axes.axvspan(left, 1, color="#f7f8fa", zorder=0)
        axes.axvline(1, color="#5b6b7b", linewidth=1.2, linestyle=(0, (4, 3)))
        for place, bar in enumerate(bars):
            colour = _colour(bar)
            axes.plot([bar.low, bar.high], [place] * 2, color=colour, linewidth=2.4, marker="|", markersize=11)
            axes.plot([bar.ratio], [place], color=colour, marker="o", markersize=8)
            axes.text(bar.high * math.exp(margin * 0.3), place, f"{bar.ratio:.2f}x", va="center", weight="bold")
        axes.set_xscale("log")
        axes.set_xlim(left, right)
        axes.xaxis.set_major_locator(FixedLocator(_ticks(left, right)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}x")
        axes.set_xlabel("times as fast as eager, whole calls; logarithmic")

    return _svg("ratios", [bar.name for bar in bars], draw)


def steps(bars: list[StepBar]) -> str:
    """Each step split in what the GPU is busy and what it waits."""

    def draw(axes: Axes) -> None:
        reach = max(bar.step for bar in bars)
        for place, bar in enumerate(bars):
            busy = min(bar.busy, bar.step)
            axes.barh(place, busy, height=0.56, color=_COLOURS["ranked"])
            axes.barh(place, bar.step - busy, left=busy, height=0.56, color=_EAGER)
            axes.text(bar.step + reach * 0.015, place, f"{bar.step:.2f} ms, busy {busy / bar.step:.0%}", va="center")
        axes.set_xlim(0, reach * 1.26)
        axes.set_xlabel("milliseconds a decode step")

    return _svg("steps", [bar.name for bar in bars], draw)


def _ticks(left: float, right: float) -> list[float]:
    """Round figures in sight, far enough apart to be read, 1 always among them."""
    found, gap = [1.0], math.log(right / left) / 14
    for tick in _TICKS:
        if left <= tick <= right and all(abs(math.log(tick / other)) >= gap for other in found):
            found.append(tick)
    return sorted(found)


def _colour(bar: Bar) -> str:
    return _COLOURS.get(bar.verdict, _OTHER)


def _svg(salt: str, names: list[str], draw: Callable[[Axes], None]) -> str:
    """The same bytes for the same figures: no date, ids that depend on ``salt`` alone."""
    with matplotlib.rc_context(cast(Any, _SETTINGS | {"svg.hashsalt": f"exactgraph {salt}"})):
        figure = Figure(figsize=(_WIDTH, _FRAME + _ROW * (len(names) + 0.3)), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.subplots()
        axes.set_axisbelow(True)
        axes.grid(axis="x", color=_GRID, linewidth=0.8)
        draw(axes)
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.45, -0.55)
        axes.tick_params(length=0)
        axes.spines[["top", "right", "left"]].set_visible(False)
        target = StringIO()
        figure.savefig(target, format="svg", transparent=True, metadata={"Date": None})
    text = target.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    # Two drawings share a page, so that each has ids of its own.
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\1{salt}-", text)
    return text.rstrip()
