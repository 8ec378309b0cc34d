"""``python -m tests.figures.checks --out FILE``: what the runtime's checks cost, beside a generation of 64 tokens.

``full_check_ms`` is the look at the whole model, once a call and again after code of the user's. ``before_a_step_ms`` is what
is asked before a step that is begun after such code; the look follows while it runs. What that comes to is taken from whole
calls with a processor of the user's, and with a streamer of the user's: with all checks and with none, in alternating pairs.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from tests.figures.models import LAYERS, deep_llama, optimised, package_digest, prompt
from transformers import LogitsProcessorList

import exactgraph
from exactgraph.canonical import write_json
from exactgraph.environment.probe import present
from exactgraph.protocol.questions import Question
from exactgraph.protocol.trace import record
from exactgraph.runtime import session as session_room
from exactgraph.runtime.guard import Guard
from exactgraph.runtime.leaving import Stay
from exactgraph.runtime.load import default_device
from exactgraph.runtime.selfcheck import self_check
from exactgraph.runtime.user_code import given_user_code

TOKENS = 64
_REPETITIONS = 5
_PAIRS = 21
_LOOKS = 200


def measure(device: torch.device) -> dict[str, Any]:
    """Figures in milliseconds, medians; shares are of the generation of 64 tokens through ``step``."""
    model = deep_llama(device)
    ids = prompt(model)

    def generate(call: Callable[..., Any], **arguments: Any) -> float:
        def once() -> None:
            call(ids, max_new_tokens=TOKENS, do_sample=False, **arguments)
            if device.type == "cuda":
                torch.cuda.synchronize(device)

        once()
        return median_ms(once, _REPETITIONS)

    handle = optimised(model, "step", budget=TOKENS, confirmed=ids.shape[1] + TOKENS)
    session = handle.session
    guard, watched = session._guard, {"logits_processor": LogitsProcessorList([lambda input_ids, scores: scores])}
    assert guard is not None
    full = median_ms(guard.refusal, _LOOKS)
    stay = Stay(lambda: guard, session._stand_ins)
    stay.hold()
    before = median_ms(stay.harmless, _LOOKS)
    others = median_ms(lambda: given_user_code(watched), _LOOKS)
    eager, step = generate(session.eager), generate(model.generate)
    pairs = {"user_code": _pairs(model, ids, watched), "user_streamer": _pairs(model, ids, {"streamer": _Streamer()})}
    if session.last is None or session.last.refusal is not None:
        raise RuntimeError(f"The timed calls ran eager, so the figures say nothing: {handle.last}")
    exactgraph.restore(model)
    return {
        "layers": LAYERS,
        "tokens": TOKENS,
        "full_check_ms": full,
        "user_code_check_ms": others,
        "before_a_step_ms": before,
        "eager_ms": eager,
        "step_ms": step,
        "share_once_a_call": (full + others) / step,
        **{f"{name}_{key}": value for key, found in pairs.items() for name, value in found.items()},
        "self_check_ms": _self_checks(model, ids),
    }


def _pairs(model: Any, ids: torch.Tensor, arguments: dict[str, Any]) -> dict[str, Any]:
    """Whole calls with code of the user's, with all checks and with none. The share is that of the median pair."""

    def checked() -> torch.Tensor:
        tokens: torch.Tensor = model.generate(ids, max_new_tokens=TOKENS, do_sample=False, **arguments)
        return tokens.cpu()  # and so the device is done

    def unchecked() -> torch.Tensor:
        with (
            patch.object(session_room, "given_user_code", lambda given: False),
            patch.object(Guard, "refusal", lambda self: None),
        ):
            return checked()

    if not torch.equal(checked(), unchecked()):
        raise RuntimeError("Calls with and without checks differ, so their times say nothing.")
    pairs = []
    for number in range(_PAIRS):
        order = (checked, unchecked) if number % 2 else (unchecked, checked)
        taken = {work: median_ms(work, 1) for work in order}
        pairs.append((taken[checked], taken[unchecked]))
    return {
        "pairs_with": len(pairs),
        "checked_ms_with": statistics.median(one for one, _ in pairs),
        "unchecked_ms_with": statistics.median(other for _, other in pairs),
        "share_of_checks_with": statistics.median(one / other - 1 for one, other in pairs),
        "share_of_checks_of_all_pairs_with": sum(one for one, _ in pairs) / sum(other for _, other in pairs) - 1,
    }


class _Streamer:
    """Does nothing."""

    def put(self, value: torch.Tensor) -> None:
        pass

    def end(self) -> None:
        pass


def _self_checks(model: Any, ids: torch.Tensor) -> float:
    """Each on a fresh installation, which has captured none of the lengths that are asked for."""
    seconds = []
    question = Question("heldout/0", tuple(ids[0].tolist()), 4)
    for _ in range(3):
        handle = optimised(model, "step", budget=TOKENS, confirmed=ids.shape[1] + TOKENS)
        frozen = {"sets": {"heldout": [record(handle.session.eager, question, model.device)]}}
        started = time.perf_counter()
        self_check(handle.session, question, frozen, handle.plan.grade)
        seconds.append(time.perf_counter() - started)
        del handle
        exactgraph.restore(model)
    return 1e3 * statistics.median(seconds)


def median_ms(work: Callable[[], Any], times: int) -> float:
    """The median of ``times`` runs in milliseconds."""
    seconds = []
    for _ in range(times):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return 1e3 * statistics.median(seconds)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.figures.checks", description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    out: Path = parser.parse_args().out
    found = present("auto")
    figures = measure(default_device())
    write_json(out, {"code": package_digest(), "device": found["device"], "environment": found["environment"], **figures})


if __name__ == "__main__":
    main()
