"""The program ``exactgraph``, and the arguments that several of its commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from exactgraph import __version__

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

Code = Annotated[str | None, typer.Option(help="Digest of the stage's code that the workflow planned with.")]
Out = Annotated[Path, typer.Option(help="File to write.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def _version(asked: bool) -> None:
    if asked:
        print(__version__)
        raise typer.Exit


@app.callback()
def options(version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True)] = False) -> None:
    """Fast Hugging Face decoding on NVIDIA GPUs without changing one generated token, and the proof."""
