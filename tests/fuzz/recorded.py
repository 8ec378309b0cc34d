"""Capture on a CPU that holds on to addresses as a CUDA graph does.

The package's emulation runs the captured function again, which reads the model as it is at replay: a weight that was replaced,
a hook that was added, another mode act at once, and a guard that missed them would not show. Here the operations themselves
are kept, with the very tensors that they had at capture, and a replay runs those.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from exactgraph.capture.emulated import EmulatedCapturer
from exactgraph.capture.graph import Function, Graph


class RecordedCapturer(EmulatedCapturer):
    """The emulation, with records in the place of functions: like a GPU's, its replays run nothing of the model's own code."""

    emulated = False

    def capture(self, function: Function) -> Graph:
        return super().capture(_Record(function))


class _Record:
    """``function`` the first time, which is the warm-up; its recording the second time, which is capture; then the record."""

    def __init__(self, function: Function) -> None:
        self._function = function
        self._warm = False
        self._operations: list[tuple[Any, Any, Any, Any]] | None = None
        self._outputs: tuple[torch.Tensor, ...] = ()

    def __call__(self) -> tuple[torch.Tensor, ...]:
        if not self._warm:
            self._warm = True
            return self._function()
        if self._operations is None:
            recorder = _Recorder()
            with recorder:
                self._outputs = self._function()
            self._operations = recorder.operations
        else:
            for operation, args, kwargs, results in self._operations:
                _again(operation, args, kwargs, results)
        return self._outputs


class _Recorder(TorchDispatchMode):
    """Keeps every operation that computes something; views are what they are."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        results = operation(*args, **kwargs)
        given = {_storage(tensor) for tensor in tree_leaves((args, kwargs)) if isinstance(tensor, torch.Tensor)}
        made = [tensor for tensor in tree_leaves(results) if isinstance(tensor, torch.Tensor)]
        if operation._schema.is_mutable:
            self.operations.append((operation, args, kwargs, None))
        elif any(_storage(tensor) not in given for tensor in made):
            self.operations.append((operation, args, kwargs, results))
        return results


def _again(operation: Any, args: Any, kwargs: Any, results: Any) -> None:
    fresh = operation(*args, **kwargs)
    if results is None:  # it wrote in place
        return
    for old, new in zip(tree_leaves(results), tree_leaves(fresh), strict=True):
        if isinstance(old, torch.Tensor):
            old.copy_(new)


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata
