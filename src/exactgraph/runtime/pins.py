"""Pins of the attention backend in a process of several threads.

torch keeps them for the process, not for a thread. So calls under one pin run side by side, and a call under another one, or
under none, waits until they have ended: otherwise it would run under a pin that is not its own, and have other bits.
"""

from __future__ import annotations

import os
import threading
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from torch.nn.attention import SDPBackend, _cur_sdpa_kernel_backends, sdpa_kernel

from exactgraph.environment.flags import set_aside
from exactgraph.refusal import Refused

Backends = tuple[SDPBackend, ...]
"""The backends to use, the first one that can; empty: torch's own choice."""


class Pins:
    """The pins in force, the innermost last, and how many blocks each thread has under them."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside: Counter[int] = Counter()
        self._in_force: list[tuple[Backends, ExitStack]] = []
        self._outside: Backends = ()
        self._waiting: deque[object] = deque()
        self._nesting = False

    @contextmanager
    def held(self, backends: Backends) -> Iterator[None]:
        """Run the block under ``backends``; waits for the calls of other threads under other ones."""
        opened = self._enter(backends)
        try:
            yield
        finally:
            self._leave(opened)

    def _enter(self, backends: Backends) -> bool:
        """Join the calls under ``backends``; True where a call that runs under another pin has begun these."""
        me = threading.get_ident()
        with self._changed:
            nested = self._inside[me] > 0
            other = nested and self._in_force[-1][0] != backends
            if other:
                self._wait_for_others(me)
            elif not nested:
                self._wait_for_turn(backends)
            if other or not self._inside:
                self._begin(backends)
            self._inside[me] += 1
        return other

    def _leave(self, opened: bool) -> None:
        me = threading.get_ident()
        with self._changed:
            self._inside[me] -= 1
            if not self._inside[me]:
                del self._inside[me]
            if opened or not self._inside:
                self._in_force.pop()[1].close()
            self._changed.notify_all()

    def _begin(self, backends: Backends) -> None:
        nested = bool(self._in_force)
        if not nested:
            self._outside = tuple(_cur_sdpa_kernel_backends(with_priority=True))
        with ExitStack() as stack:
            if backends or nested:  # torch's own choice, inside a call under a pin, is what it was outside of that
                chosen = list(backends or self._outside)
                stack.enter_context(set_aside(sdpa_kernel(chosen, set_priority=len(chosen) > 1)))
            self._in_force.append((backends, stack.pop_all()))

    def _wait_for_turn(self, backends: Backends) -> None:
        """In the order of asking, so that calls that keep coming under one pin do not hold up one under another for ever."""
        ticket = object()
        self._waiting.append(ticket)
        try:
            self._changed.wait_for(lambda: self._waiting[0] is ticket and self._open_to(backends))
        finally:
            self._waiting.remove(ticket)
            self._changed.notify_all()

    def _open_to(self, backends: Backends) -> bool:
        if not self._inside:
            return True
        return not self._nesting and len(self._in_force) == 1 and self._in_force[0][0] == backends

    def _wait_for_others(self, me: int) -> None:
        """A call that is made from inside another one under another pin needs all other threads out of the way."""
        if self._nesting:
            raise Refused(
                "attention-pin", "Calls in two threads wait for each other's attention backend; one had to give way."
            )
        self._nesting = True
        try:
            self._changed.wait_for(lambda: set(self._inside) == {me})
        finally:
            self._nesting = False

    def before_fork(self) -> None:
        self._changed.acquire()

    def after_fork(self) -> None:
        self._changed.release()

    def after_fork_in_child(self) -> None:
        """The other threads do not exist here, and will not end what they have begun."""
        me = threading.get_ident()
        self._inside = Counter({me: self._inside[me]} if self._inside[me] else {})
        self._waiting.clear()
        self._nesting = False
        if not self._inside:
            while self._in_force:
                self._in_force.pop()[1].close()
        self._changed.release()


PINS = Pins()
os.register_at_fork(before=PINS.before_fork, after_in_parent=PINS.after_fork, after_in_child=PINS.after_fork_in_child)
