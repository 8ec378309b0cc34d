"""``python -m tests.figures.checks --out FILE``: what the runtime's checks cost, beside a generation of 64 tokens."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tests.figures.models import LAYERS, deep_llama, optimised, prompt
from transformers import LogitsProcessorList

import exactgraph
from exactgraph.canonical import write_json
from exactgraph.environment.probe import present
from exactgraph.protocol.questions import Question
from exactgraph.protocol.trace import record
from exactgraph.runtime.load import default_device
from exactgraph.runtime.selfcheck import self_check
from exactgraph.runtime.user_code import given_user_code

TOKENS = 64
_REPETITIONS = 5
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
    others = median_ms(lambda: given_user_code(watched), _LOOKS)
    eager, step = generate(session.eager), generate(model.generate)
    with_code = generate(model.generate, **watched)
    if session.last is None or session.last.refusal is not None:
        raise RuntimeError(f"The timed calls ran eager, so the figures say nothing: {handle.last}")
    exactgraph.restore(model)
    return {
        "layers": LAYERS,
        "tokens": TOKENS,
        "full_check_ms": full,
        "user_code_check_ms": others,
        "eager_ms": eager,
        "step_ms": step,
        "step_with_user_code_ms": with_code,
        "share_once_a_call": (full + others) / step,
        "share_with_user_code": (full * TOKENS + others) / step,
        "self_check_ms": _self_checks(model, ids),
    }


def _self_checks(model: Any, ids: torch.Tensor) -> float:
    """Each on a fresh installation, which has captured none of the lengths that are asked for."""
    seconds = []
    question = Question("heldout/0", tuple(ids[0].tolist()), 4)
    for _ in range(3):
        handle = optimised(model, "step", budget=TOKENS, confirmed=ids.shape[1] + TOKENS)
        frozen = {"sets": {"heldout": [record(handle.session.eager, question, model.device)]}}
        started = time.perf_counter()
        self_check(handle.session, list(question.ids), frozen, handle.plan.grade)
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
    write_json(out, {"device": found["device"], "environment": found["environment"], **figures})


if __name__ == "__main__":
    main()
