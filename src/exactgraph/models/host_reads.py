"""Operations whose result the host has to wait for, found on any device.

A graph cannot hold them: what the host does next would depend on values that exist only at replay. Real capture fails on them;
emulated capture runs them, and whatever was chosen at capture would be chosen anew at every replay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from exactgraph.refusal import Refused

# Values that decide on the host, and results whose shape depends on values.
_READS = {
    "aten::_local_scalar_dense",
    "aten::item",
    "aten::is_nonzero",
    "aten::equal",
    "aten::nonzero",
    "aten::nonzero_numpy",
    "aten::masked_select",
    "aten::bincount",
    "aten::_unique",
    "aten::_unique2",
    "aten::unique_dim",
    "aten::unique_consecutive",
    # Works through its groups in a loop on the host.
    "transformers::grouped_mm_fallback",
}
_INDEXING = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}
_MASKS = (torch.bool, torch.uint8)
# What reaches the host without an operation, where the tensor lies there already.
_METHODS: dict[Callable[..., Any], str] = {
    torch.Tensor.tolist: "tolist",
    torch.Tensor.numpy: "numpy",
    torch.Tensor.cpu: "cpu",
}


@contextmanager
def refusing_host_reads(model: Any) -> Iterator[None]:
    """Raise ``Refused`` (``synchronises``) at the first operation in the block that the host has to wait for."""
    name = type(model).__name__
    # Looks into the tokens where no attention mask is given, but neither in eager, which gives one, nor under capture.
    warns = patch("transformers.modeling_utils.PreTrainedModel.warn_if_padding_and_no_attention_mask")
    with warns, _Operations(name), _Methods(name):
        yield


def _refuse(model: str, operation: str) -> Refused:
    return Refused("synchronises", f"A step of {model} calls {operation}, for which the host waits: no graph can hold that.")


class _Operations(TorchDispatchMode):
    def __init__(self, model: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._model = model

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name
        if name in _READS or (name == "aten::repeat_interleave" and kwargs.get("output_size") is None):
            raise _refuse(self._model, name)
        if name in _INDEXING and any(index is not None and index.dtype in _MASKS for index in args[1]):
            raise _refuse(self._model, f"{name} with a mask")
        if name == "aten::_to_copy" and _leaves(args[0], kwargs.get("device")):
            raise _refuse(self._model, f"{name} to the CPU")
        return func(*args, **kwargs)


class _Methods(TorchFunctionMode):
    def __init__(self, model: str) -> None:
        super().__init__()
        self._model = model

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _METHODS:
            raise _refuse(self._model, f"Tensor.{_METHODS[func]}")
        return func(*args, **(kwargs or {}))


def _leaves(tensor: torch.Tensor, device: torch.device | None) -> bool:
    """Whether a copy to ``device`` brings ``tensor`` from an accelerator to the host."""
    return device is not None and device.type == "cpu" and tensor.device.type != "cpu"
