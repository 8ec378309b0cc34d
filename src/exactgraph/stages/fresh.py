"""Fresh processes of our own command."""

from __future__ import annotations

import subprocess
import sys

from exactgraph.refusal import UserError
from exactgraph.workflow.parent import child_environment


def run_fresh(*arguments: str) -> None:
    """Run ``exactgraph <arguments>`` in a new process and wait for it.

    Raises ``UserError`` where it failed; its own sentence is on standard error already.
    """
    done = subprocess.run([sys.executable, "-m", "exactgraph", *arguments], env=child_environment(), check=False)
    if done.returncode != 0:
        raise UserError(f"exactgraph {arguments[0]} ended with exit code {done.returncode}; see its message above.")
