"""A forward that stands in for a module's own, for one thread's running call and for nobody else."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MethodType
from typing import Any

from torch import nn

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


class StandIns:
    """The stand-ins of an installation: at work while a call runs, for the thread that made it, and gone otherwise.

    ``of``: by module. ``running``: who made the call that runs, or None.
    """

    def __init__(self, forwards: Mapping[nn.Module, Callable[..., Any]]) -> None:
        self.running: Caller | None = None
        self.of = {module: StandIn(module, forward, lambda: self.running) for module, forward in forwards.items()}

    @contextmanager
    def attached(self) -> Iterator[None]:
        """At work in the block, for whoever runs it."""
        try:
            self.running = caller()
            self.attach()
            yield
        finally:
            self.running = None
            self.detach()

    @contextmanager
    def detached(self) -> Iterator[None]:
        """The untouched model in the block, inside a call that goes on afterwards."""
        self.detach()
        try:
            yield
        finally:
            self.attach()

    def attach(self) -> None:
        for module, stand_in in self.of.items():
            module.forward = stand_in

    def detach(self) -> None:
        """Leaves what the user's own code put in a stand-in's place."""
        for module, stand_in in self.of.items():
            if vars(module).get("forward") is stand_in:
                del module.forward
