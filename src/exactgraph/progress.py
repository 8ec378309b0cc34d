"""Progress of long work: a bar on a terminal, one line a step where output is piped."""

from __future__ import annotations

import sys
from types import TracebackType

from tqdm import tqdm


class Progress:
    """``with Progress("baseline", 13) as progress: … progress.step("heldout/0")``. Writes to standard error."""

    def __init__(self, title: str, total: int) -> None:
        self._title = title
        self._total = total
        self._done = 0
        self._bar: tqdm[None] | None = None

    def __enter__(self) -> Progress:
        if sys.stderr.isatty():
            self._bar = tqdm(total=self._total, desc=self._title, leave=False)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.close()

    def step(self, name: str) -> None:
        """One more step is done, called ``name``."""
        self._done += 1
        if self._bar is not None:
            self._bar.set_postfix_str(name, refresh=False)
            self._bar.update()
        else:
            print(f"{self._title}: {self._done}/{self._total} {name}", file=sys.stderr, flush=True)
