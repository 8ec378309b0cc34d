"""The command line: a command for each stage, and commands for people."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable

from exactgraph.cli import results, stages
from exactgraph.cli.app import app
from exactgraph.refusal import Refused, UserError

__all__ = ["app", "main", "results", "stages"]


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
