"""A forward that stands in for a module's own, for one thread's running call and for nobody else."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from types import MethodType
from typing import Any

from exactgraph.refusal import Refused

Caller = tuple[int, int]
"""A process and a thread in it: after a fork a thread of the child may have the number of one of the parent's."""


def caller() -> Caller:
    """Who runs this."""
    return os.getpid(), threading.get_ident()


class StandIn:
    """Calls ``forward`` for whoever ``running`` names, and the module's own forward for every other thread and process."""

    def __init__(self, module: Any, forward: Callable[..., Any], running: Callable[[], Caller | None]) -> None:
        self._forward = forward
        self._running = running
        self._own = MethodType(type(module).forward, module)
        # transformers reads the names of arguments from the signature.
        self.__wrapped__ = self._own

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._running() == caller():
            return self._forward(*args, **kwargs)
        return self._own(*args, **kwargs)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise Refused(
            "running", "The model cannot be copied or pickled while a call of generate runs: wait until it has ended."
        )
