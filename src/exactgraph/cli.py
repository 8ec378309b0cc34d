"""The command line: a command for each stage, and ``report``, ``table``, ``status``, ``verify``, ``bench``, ``doctor``.

Stages are imported inside their commands, so that quick commands stay quick and free of torch.
"""

from __future__ import annotations

import errno
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from exactgraph import __version__
from exactgraph.canonical import read_json
from exactgraph.refusal import Refused, UserError

if TYPE_CHECKING:
    from exactgraph.receipts.status import Row

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)

Key = Annotated[Path, typer.Argument(help="artifacts/<model>@<commit>/<device>/<environment>/<protocol>")]
Candidate = Annotated[str, typer.Option(help="Name of the candidate.")]
Code = Annotated[str | None, typer.Option(help="Digest of the stage's code that the workflow planned with.")]
Out = Annotated[Path, typer.Option(help="File to write.")]
Jobs = Annotated[int, typer.Option(min=1, help="How many fresh processes may run at the same time.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def _code(stage: str, planned: str | None, candidate: str | None = None) -> str:
    """The digest of the stage's code as it stands; refuses where it is not what the workflow planned with."""
    from exactgraph.workflow.stage_digest import stage_digest

    present = stage_digest(stage, candidate)
    if planned not in (None, present):
        raise UserError(f"The code of stage {stage} changed while the workflow ran; run it again.")
    return present


def _version(asked: bool) -> None:
    if asked:
        print(__version__)
        raise typer.Exit


@app.callback()
def options(version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True)] = False) -> None:
    """Fast Hugging Face decoding on NVIDIA GPUs without changing one generated token, and the proof."""


@app.command()
def probe(slot: Annotated[str, typer.Option()], out: Out, precision: str = "auto", code: Code = None) -> None:
    """Find device, environment and precision of this place."""
    from exactgraph.stages import probe as stage

    _code("probe", code)
    stage.run(slot, precision, out)


@app.command()
def resolve(spec: str, out: Out, code: Code = None) -> None:
    """Turn a source (pypi:, path:, random:) into a commit."""
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


@app.command()
def table(where: Annotated[Path, typer.Argument(help="A receipt, or a folder of them.")] = Path("artifacts")) -> None:
    """Print receipts as tables of candidates with the verdict; of a folder, those that are current."""
    from exactgraph.receipts.status import CURRENT
    from exactgraph.report.table import table as render

    if where.is_file():
        paths = [where]
    else:
        paths = [Path(row.receipt) for row in _rows(where) if row.receipt is not None and row.state == CURRENT]
    for path in paths:
        print(render(read_json(path), color=sys.stdout.isatty()))
    if not paths:
        print(f"No receipt below {where} is current; run: snakemake --cores 1 confirm")


def _rows(root: Path) -> list[Row]:
    from exactgraph.receipts.status import status as rows_of

    config = root / "config.json"
    if config.is_file():
        return rows_of(root, read_json(config))
    # A folder of imported receipts has seen no run, so nothing is wanted there.
    rows = rows_of(root, {"models": [], "devices": {}, "candidates": []})
    if not rows:
        raise UserError(f"There are no receipts in {root}; run: snakemake --cores 1 confirm")
    return rows


@app.command()
def hotspots(file: Annotated[Path, typer.Argument(help="A profile.json, or a receipt.")]) -> None:
    """Print where eager's decode step spends its time, and what each candidate can touch of it."""
    from exactgraph.report.hotspots_table import hotspots as render

    found = read_json(file)
    print(render(found["predicate"]["profile"] if "predicate" in found else found, color=sys.stdout.isatty()))


@app.command()
def status(
    root: Annotated[Path, typer.Argument(help="Folder of receipts.")] = Path("artifacts"), as_json: Json = False
) -> None:
    """List devices, environments, protocols and models: receipts that are current, stale and why, or missing."""
    from exactgraph.report.matrix import status_table

    rows = _rows(root)
    if as_json:
        print(json.dumps([row.to_json() for row in rows], indent=1))
    else:
        print(status_table(rows, color=sys.stdout.isatty()))


@app.command()
def rows(receipts: Annotated[list[Path], typer.Argument(help="Receipts of one device.")], out: Out) -> None:
    """Write the figures of receipts as rows."""
    from exactgraph.canonical import write_json
    from exactgraph.report.rows import rows as rows_of

    write_json(out, rows_of([read_json(receipt) for receipt in receipts]))


@app.command()
def verify(
    receipt: Path,
    rerun: Annotated[bool, typer.Option("--rerun", help="Confirm again, in a fresh process on this GPU.")] = False,
    as_json: Json = False,
) -> None:
    """Recompute every digest and the verdict of a receipt. Exit code 0: yes, 1: no."""
    from exactgraph.receipts.verify import verify as check
    from exactgraph.stages.confirm import traces_fresh

    result = check(receipt, traces_fresh if rerun else None)
    print(json.dumps({"ok": result.ok, "lines": result.lines}, indent=1) if as_json else "\n".join(result.lines))
    raise typer.Exit(0 if result.ok else 1)


@app.command("export")
def export_receipt(receipt: Path, out: Out) -> None:
    """Pack a receipt that verifies, with its evidence and without weights, into one file that verifies elsewhere."""
    from exactgraph.receipts.bundle import export_bundle

    print(f"{out}: {receipt} with its evidence, {export_bundle(receipt, out)} files")


@app.command("import")
def import_receipt(
    file: Annotated[Path, typer.Argument(help="What export wrote.")],
    root: Annotated[
        Path, typer.Argument(help="Folder to put it in; not one that a workflow works in, which removes what it did not make.")
    ] = Path("receipts"),
) -> None:
    """Unpack an exported receipt, verify it, and add it to a folder of receipts."""
    from exactgraph.receipts.bundle import import_bundle

    place, added = import_bundle(file, root)
    print(f"{place}: {'verified and imported' if added else 'is already there'}")


@app.command()
def bench(
    model: Annotated[str, typer.Argument(help="A model folder, or a source that was downloaded to artifacts.")],
    candidates: Annotated[str, typer.Option(help="Names separated by commas.")],
    dtype: Annotated[str, typer.Option(help="auto, bf16, fp16 or fp32.")] = "auto",
    attention: Annotated[str, typer.Option(help="default, flash, efficient, math or cudnn.")] = "default",
    prompt_set: Annotated[str, typer.Option(help="heldout, confirm or long.")] = "heldout",
    new_tokens: Annotated[int, typer.Option(help="Tokens to generate for each prompt.")] = 64,
    repetitions: Annotated[int, typer.Option(help="Measured runs of each prompt.")] = 3,
    warmups: Annotated[int, typer.Option(help="Runs before any timing.")] = 1,
    step_lengths: Annotated[int, typer.Option(help="Lengths that a whole decode step may be captured for.")] = 256,
    as_json: Json = False,
) -> None:
    """Compare and time candidates beside eager, in one process. Exit code 1: something differs."""
    from exactgraph.bench.run import exit_code, run
    from exactgraph.bench.settings import Settings
    from exactgraph.bench.table import table as render
    from exactgraph.canonical import canonical_bytes

    settings = Settings(dtype, attention, prompt_set, new_tokens, repetitions, warmups, step_lengths)
    result = run(model, candidates, settings)
    text = canonical_bytes(result).decode() if as_json else render(result, color=sys.stdout.isatty())
    print(text, end="")
    raise typer.Exit(exit_code(result))


@app.command()
def doctor(as_json: Json = False) -> None:
    """Look for what would stop or change a run on this machine."""
    from exactgraph.doctor import doctor as look

    checks = [check.to_json() for check in look()]
    if as_json:
        print(json.dumps(checks, indent=1))
    else:
        for check in checks:
            print(f"{check['state']:<5} {check['name']:<14} {check['sentence']}")
    raise typer.Exit(1 if any(check["state"] == "fail" for check in checks) else 0)


def main() -> None:
    """Entry point: errors of the user's are a sentence on standard error and exit code 2."""
    from exactgraph.workflow.parent import die_with_parent

    die_with_parent()
    run: Callable[[], None] = app
    try:
        run()
    except (UserError, Refused) as error:
        print(f"exactgraph: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        where = f" while writing {error.filename}" if error.filename else ""
        print(f"exactgraph: The disk is full{where}: free some space and run again. What was there is whole.", file=sys.stderr)
        sys.exit(2)
