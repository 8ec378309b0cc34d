"""What must not have changed since capture. Graphs hold addresses, so a model that moved must not be replayed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from exactgraph.environment.flags import flags, settle
from exactgraph.refusal import Refusal
from exactgraph.runtime.fitness import TENSORS, interfered
from exactgraph.runtime.state import Snapshot

_ANOTHER_GPU = "current-device"


class Guard:
    """The state of a model and of this process at installation, to be compared before every call.

    ``stand_ins`` are the forwards that the installation itself attaches while a call runs. The same comparison therefore
    serves in the middle of a call, after code of the user's ran: see :mod:`exactgraph.runtime.user_code`.
    """

    def __init__(self, model: Any, stand_ins: Mapping[nn.Module, Any]) -> None:
        self._model = model
        self._stand_ins = stand_ins
        self._snapshot = Snapshot(model, list(model.named_modules()), stand_ins)
        # Of then: a model that was offloaded since is on no device that could be asked.
        self._device: torch.device = model.device
        settle(self._device)
        self._flags = flags()
        self._stream = _stream(self._device)

    def refusal(self) -> Refusal | None:
        """Why captured work must not be used now, or None. Everything is looked at; under half a millisecond for 24 layers."""
        outside = self.outside()
        if outside is not None and outside.reason != _ANOTHER_GPU:
            return outside
        # Modules that are not those of installation are for the snapshot to find.
        suspects = self._snapshot.suspects()
        refusal = interfered(self._model, suspects, self._stand_ins)
        if refusal is not None:
            return refusal
        what = self._snapshot.changed(suspects)
        if what is not None:
            return Refusal("model-changed", f"The model is not what it was at capture: {what} changed.")
        if outside is not None:
            # Only now: of a model that was moved, another current GPU is no surprise.
            return outside
        now = flags()
        if now != self._flags:
            names = ", ".join(name for name, value in now.items() if value != self._flags[name])
            return Refusal("flags-changed", f"Flags of torch that change bits are not what they were at capture: {names}.")
        return None

    def outside(self) -> Refusal | None:
        """The part of :meth:`refusal` that is not about the model: why nothing captured may be replayed here and now, whatever
        becomes of its results. It takes the same few microseconds for every model.
        """
        refusal = around(self._device)
        if refusal is None and _stream(self._device) != self._stream:
            # Buffers that a call on the one stream still reads would be written on the other.
            return Refusal("stream", "The current CUDA stream is not the one that was current at capture.")
        return refusal

    def hold(self) -> Held:
        """Hold on to the tensors of the model, which is as it was at installation."""
        return Held(self._snapshot.tensors())


class Held:
    """``tensors`` that are kept, so that nobody frees what graphs read, and that are still where they were."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self._tensors = [tensor for tensor in tensors if type(tensor) in TENSORS]
        self._addresses = self._now()

    def there(self) -> bool:
        """Whether all memory that graphs read is there: a tensor may have been given other memory."""
        return self._now() == self._addresses

    def _now(self) -> list[int]:
        return [*map(torch.Tensor.data_ptr, self._tensors)]


def around(device: torch.device) -> Refusal | None:
    """What surrounds this call and would act on eager's operations, but not on captured ones; None where nothing does."""
    if torch.is_autocast_enabled(device.type):
        return Refusal("autocast", "Autocast is on; captured work runs without it.")
    functions = [mode for mode in _get_current_function_mode_stack() if not isinstance(mode, DeviceContext)]
    for mode in (*functions, *_get_current_dispatch_mode_stack()):
        return Refusal(
            "torch-mode", f"{type(mode).__name__} watches or changes torch's operations; it would not see captured ones."
        )
    if device.type != "cuda":
        return None
    if torch.cuda.current_device() != device.index:
        sentence = (
            f"The current GPU is {torch.cuda.current_device()} and the model is on {device}: torch.cuda.set_device changes it."
        )
        return Refusal(_ANOTHER_GPU, sentence)
    if torch.cuda.is_current_stream_capturing():
        return Refusal("capturing", "The current CUDA stream is being captured by somebody else.")
    return None


def _stream(device: torch.device) -> Any:
    return torch.cuda.current_stream(device) if device.type == "cuda" else None
