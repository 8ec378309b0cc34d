"""Commands for people: what a run left behind, a bench without one, and a look at the machine.

What they need is imported inside them, so that quick commands stay quick and free of torch.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from exactgraph.canonical import read_json
from exactgraph.cli.app import Json, Out, app
from exactgraph.refusal import UserError

if TYPE_CHECKING:
    from exactgraph.receipts.status import Row


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


@app.command()
def compare(receipt: Path, other: Path, as_json: Json = False) -> None:
    """Whether two receipts say the same but for GPUs' UUIDs, processes and timings. Exit code 0: yes, 1: no."""
    from exactgraph.receipts.alike import alike

    result = alike(receipt, other)
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
