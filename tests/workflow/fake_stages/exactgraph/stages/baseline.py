"""One pretended baseline."""

from __future__ import annotations

import os
from argparse import Namespace

from exactgraph.machine import note
from exactgraph.protocol.traces import trace

from exactgraph.canonical import write_json
from exactgraph.workflow.stage_digest import stage_digest


def run(arguments: Namespace) -> None:
    note("baseline", arguments.run)
    code = stage_digest("baseline")
    assert code == arguments.code
    write_json(arguments.out, {"stage": "baseline", "code": code, "process": {"pid": os.getpid()}, "sets": trace()})
