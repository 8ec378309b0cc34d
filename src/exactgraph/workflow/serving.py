"""Which slots serve a device and an environment, and which GPUs of this machine they are."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path

from exactgraph.canonical import read_json
from exactgraph.workflow.keys import CONFIG, ROOT

#: Instead of GPUs: the slot is whatever GPUs the machine has.
ANY = "any"


def serving(slots: Iterable[str], device: str, env: str, root: Path = Path(ROOT)) -> list[str]:
    """Those of ``slots`` that were last seen with this device and environment key."""
    return [name for name in slots if _seen(root / "slots" / name / "probe.json") == (device, env)]


def _seen(probe: Path) -> tuple[str, str] | None:
    try:
        changed = probe.stat().st_mtime_ns
    except FileNotFoundError:
        return None
    return _read(probe.absolute(), changed)


@cache
def _read(probe: Path, changed: int) -> tuple[str, str]:
    """Device and environment key. Snakemake asks for each resource of each job; the file is read once for all of them."""
    found = read_json(probe)
    return found["device"]["id"], found["environment"]["key"]


def pins(root: Path, device: str, env: str) -> list[str] | None:
    """The GPUs of this machine that a job of this device and environment may use; None where any with the device's id will do.

    They are the ``visible`` of the slots that serve it, of the configuration of the last run below ``root``.
    """
    config = root / CONFIG
    if not config.is_file():
        return None
    slots = read_json(config)["devices"]
    named = [str(slots[name].get("visible", ANY)) for name in serving(slots, device, env, root)]
    return None if not named or ANY in named else named
