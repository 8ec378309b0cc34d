"""How much a timing on one GPU moves while another GPU of the host works.

    python tools/two_gpus.py artifacts/<model>@<commit>/<device>/<environment>/<protocol> --candidates C025,step --out FILE

Takes the frozen baseline and the plans of a key, holds one GPU alone as ``validate`` does, and times eager beside each
candidate, over and over under each condition: the other GPU quiet; multiplying matrices, which draws power and nothing of the
host; decoding in eager, which keeps cores of the host busy too. Whoever works on the other GPU holds that one. Every timed
answer is compared with the baseline. Adds the rows of this key to FILE, ``{"code", "device", "environment", "rows"}``: tok/s
are decode tokens a second, ``ratio`` is of whole calls, ``eager_moved`` and ``moved`` are tok/s over those beside a quiet GPU.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from exactgraph.candidates.registry import candidate
from exactgraph.canonical import read_json, short, write_json
from exactgraph.environment import nvml
from exactgraph.environment.gpulock import HELD, hold_gpu
from exactgraph.refusal import UserError
from exactgraph.stages.loaded import Loaded, open_model
from exactgraph.stages.place import Place
from exactgraph.workflow.parent import child_environment, die_with_parent
from exactgraph.workflow.stage_digest import stage_digest

CONDITIONS = ("quiet", "products", "decoding")
READY = "at work"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("key", type=Path, help="folder of a confirmed result")
    parser.add_argument("--candidates", default="step", help="names separated by commas")
    parser.add_argument("--out", type=Path, help="file to add the rows to")
    parser.add_argument("--rounds", type=int, default=3, help="how often each condition comes up")
    parser.add_argument("--prompts", type=int, default=3, help="how many prompts each condition times each time")
    parser.add_argument("--work", choices=CONDITIONS[1:], help="only keep a GPU busy, until this process is ended")
    parser.add_argument("--gpu", help="UUID of the GPU to keep busy")
    arguments = parser.parse_args()
    place = Place(arguments.key)
    if arguments.work:
        work(place, arguments.work, arguments.gpu)
    elif arguments.out is None:
        parser.error("--out is missing")
    else:
        for name in arguments.candidates.split(","):
            add(arguments.out, place, measure(place, name, arguments.rounds, arguments.prompts))


def measure(place: Place, name: str, rounds: int, prompts: int) -> list[dict[str, Any]]:
    """One row for each condition."""
    with open_model(place) as loaded:
        from exactgraph.environment.load import watched
        from exactgraph.protocol.timing import Repetitions, summarise
        from exactgraph.runtime.session import Session
        from exactgraph.stages.context import context_of

        frozen, plan, context = place.frozen(), place.plan(name), context_of(loaded)
        asked = loaded.questions["heldout"][:prompts]
        times = {condition: Repetitions(frozen["sets"]["heldout"], loaded.device) for condition in CONDITIONS}
        noise: dict[str, list[str]] = {condition: [] for condition in CONDITIONS}
        other = other_gpu(loaded)
        with Session(loaded.model, candidate(name), plan["decisions"], context, frozen["attention"]) as session:
            times["quiet"].warm_up(session.eager, session.generate, asked, 2)
            with loaded.hold.alone():
                for turn in range(rounds):
                    for condition in CONDITIONS[turn % 3 :] + CONDITIONS[: turn % 3]:
                        with busy(place, other, condition), watched(loaded.hold.uuid) as load:
                            times[condition].paired(session.eager, session.generate, asked, 2)
                        noise[condition] += load.noisy
            refusal = session.served_by_eager()
            if refusal is not None:
                raise UserError(f"{name} was not timed: {refusal}")
        found = {condition: summarise(measured.pairs) for condition, measured in times.items()}
        return [row(place, name, condition, times[condition], found, noise[condition]) for condition in CONDITIONS]


def row(
    place: Place, name: str, condition: str, compared: Any, found: dict[str, dict[str, Any]], noise: list[str]
) -> dict[str, Any]:
    timing, quiet = found[condition], found["quiet"]
    if compared.difference is not None:
        raise UserError(f"{name} left the baseline beside a GPU that was {condition}: {compared.difference}.")
    return {
        "id": f"{place.manifest()['model']}/{name}/{condition}",
        "matches": compared.matches,
        "of": compared.of,
        "eager_tok_s": timing["eager_tok_s"],
        "tok_s": timing["candidate_tok_s"],
        "ratio": timing["ratio"],
        "interval": timing["interval"],
        "eager_moved": timing["eager_tok_s"] / quiet["eager_tok_s"],
        "moved": timing["candidate_tok_s"] / quiet["candidate_tok_s"],
        "noisy": sorted(set(noise)),
    }


def other_gpu(loaded: Loaded) -> str:
    """The UUID of a GPU of the same kind that is not the one held."""
    device = loaded.environment["device"]["id"]
    others = [gpu.uuid for gpu in nvml.gpus() if gpu.device.id == device and gpu.uuid != loaded.hold.uuid]
    if not others:
        raise UserError(f"This needs two GPUs that are {device}, and there is one at most.")
    return others[0]


@contextmanager
def busy(place: Place, gpu: str, condition: str) -> Iterator[None]:
    """Another process at work on ``gpu`` while the block runs."""
    if condition == "quiet":
        yield
        return
    variables = {name: value for name, value in child_environment().items() if name not in (HELD, "CUDA_VISIBLE_DEVICES")}
    command = [sys.executable, __file__, str(place.folder), "--work", condition, "--gpu", gpu]
    with subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True) as process, ExitStack() as stack:
        stack.callback(process.kill)
        assert process.stdout is not None
        if process.stdout.readline().strip() != READY:
            raise UserError("The process that was to keep the other GPU busy ended; its message is above.")
        yield


def work(place: Place, condition: str, gpu: str) -> None:
    """Keep ``gpu`` busy until this process is ended, and say so once it is."""
    die_with_parent()
    environment = place.environment()
    with hold_gpu(environment["device"]["id"], pins=[gpu]):
        import torch

        from exactgraph.runtime.load import default_device, load_model

        device = default_device()
        if condition == "products":
            square = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)
            once: Callable[[], object] = partial(torch.mm, square, square)
        else:
            model = load_model(place.model_dir, environment["precision"], device)
            ids = torch.arange(5, 37, device=device)[None]
            once = partial(model.generate, ids, max_new_tokens=64, do_sample=False)
        once()
        torch.cuda.synchronize()
        print(READY, flush=True)
        while True:
            once()
            torch.cuda.synchronize()


def add(out: Path, place: Place, rows: list[dict[str, Any]]) -> None:
    """Write ``rows`` beside those of other keys that ``out`` holds, of the same device, environment and code."""
    environment = place.environment()
    head = {"device": environment["device"]["id"], "environment": environment["environment"]["key"]}
    kept: list[dict[str, Any]] = []
    if out.is_file():
        before = read_json(out)
        if before != {**head, "code": code_of(before["rows"]), "rows": before["rows"]}:
            raise UserError(
                f"{out} was measured on another device, in another environment or with other code: name a new file."
            )
        ids = {row["id"] for row in rows}
        kept = [row for row in before["rows"] if row["id"] not in ids]
    write_json(out, {**head, "code": code_of([*kept, *rows]), "rows": [*kept, *rows]})


def code_of(rows: list[dict[str, Any]]) -> str:
    """The digest of the code that times the candidates of ``rows``, as it stands."""
    names = sorted({row["id"].split("/")[1] for row in rows})
    return short({name: stage_digest("validate", name) for name in names})


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(str(error))
