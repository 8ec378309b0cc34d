"""What a profile says of eager's decode step, in words and cells, for the report and for a terminal."""

from __future__ import annotations

from typing import Any

from exactgraph.report.reading import percent

Profile = dict[str, Any]

KIND_COLUMNS, GPU_COLUMNS = ("kind of work", "what it is", "host time"), ("kernels", "GPU time", "share of GPU time")
REACH_COLUMNS = ("candidate", "touches", "host time", "kernels", "GPU time", "at most")
_KINDS = {
    "projection": "linear layers",
    "norm": "normalisations",
    "activation": "the MLP beside its linear layers",
    "attention": "attention beside its linear layers",
    "rotary": "rotary position embedding",
    "cache": "keys and values appended",
    "head": "logits of the vocabulary",
    "other": "embedding, masks, residual additions",
    "sampling": "outside the model's forward pass",
}


def timed(profile: Profile) -> bool:
    """Whether the step was timed and its work on a GPU seen. A rehearsal does neither."""
    return profile["step_ms"] is not None and profile["gpu"] is not None


def step_sentences(profile: Profile) -> str:
    """How long a timed step takes, and what the GPU does meanwhile."""
    step, gpu = profile["step_ms"], profile["gpu"]
    busy, gap, host = (_part(gpu[name], step) for name in ("busy_ms", "launch_gap_ms", "host_ms"))
    graphs = f", {amount(gpu['graph_launches'])} of them of a graph" if gpu["graph_launches"] else ""
    return (
        f"A decode step of eager takes {milliseconds(step)}. The GPU is busy for {busy}. It waits for {gap} in launch gaps, "
        f"while the host is inside the model's forward pass, and for {host} while the host is elsewhere, in sampling and in "
        f"the loop around the model. A step runs {amount(gpu['kernels'])} kernels, copies and fills, started by "
        f"{amount(gpu['launches'])} launches{graphs}."
    )


def kind_rows(profile: Profile) -> list[tuple[str, ...]]:
    """Cells of ``KIND_COLUMNS``, and of ``GPU_COLUMNS`` where timed; the most of the host's time first."""
    total = sum(kind["gpu_ms"] or 0 for kind in profile["kinds"].values())
    rows = []
    for name, kind in sorted(profile["kinds"].items(), key=lambda entry: -entry[1]["share"]):
        cells: tuple[str, ...] = (name, _KINDS.get(name, "-"), percent(kind["share"]))
        if timed(profile):
            spent = kind["gpu_ms"]
            cells += (amount(kind["kernels"]), milliseconds(spent), percent(spent / total if spent and total else spent))
        rows.append(cells)
    return rows


def reach_cells(profile: Profile, name: str) -> tuple[str, ...]:
    """Cells of ``REACH_COLUMNS`` but the first, of a timed step."""
    reach = profile["reach"].get(name)
    if reach is None:
        return ("not known in this layout", "-", "-", "-", "-")
    most = "-" if reach["at_most"] is None else f"{reach['at_most']:.2f}x"
    touches = "; ".join(reach["touches"]) or "nothing"
    return (touches, percent(reach["share"]), amount(reach["kernels"]), milliseconds(reach["gpu_ms"]), most)


def build_order(profile: Profile) -> list[str]:
    """The names that the profile has, in the order in which they are built."""
    return list(dict.fromkeys([*profile["order"], *profile["reach"]]))


def amount(number: float | None) -> str:
    """A count of one step, which is an average over steps."""
    return "-" if number is None else f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def milliseconds(spent: float | None) -> str:
    return "-" if spent is None else f"{spent:.2f} ms" if spent >= 1 else f"{spent:.3f} ms"


def _part(spent: float, step: float) -> str:
    return f"{milliseconds(spent)} ({percent(spent / step)})"
