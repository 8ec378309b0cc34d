"""The encoder's outputs of all windows ahead of the decode loop.

In batches the encoder's matrix products may take other kernels than one window at a time, so bits may differ: :func:`grade_of`
says by how much, on this device. One window at a time through a captured encoder is the alternative that keeps eager's bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from transformers.modeling_outputs import BaseModelOutput

from exactgraph.capture.graph import Capturer, Graph
from exactgraph.models.known_masks import Full, full_masks, masks_known
from exactgraph.models.step_inputs import Form, StepInputs, form_of
from exactgraph.progress import Progress
from exactgraph.protocol.grades import BIT_IDENTICAL, TOKEN_IDENTICAL
from exactgraph.refusal import UserError
from exactgraph.runtime.rows import Inputs, together

Encoder = Callable[[Inputs], torch.Tensor]

# The method with which ``generate`` calls the encoder, since 5.2x and before; both take and give the same.
_ENCODES = ("_maybe_prepare_encoder_kwargs_for_generation", "_prepare_encoder_decoder_kwargs_for_generation")


class Precomputed(Sequence[BaseModelOutput]):
    """The output for each window, for ``generate(encoder_outputs=…)``: hidden states ``(1, positions, hidden)``.

    As many bytes as ``device_bytes`` stay on the device, the first windows'; the others wait in the host's memory, pinned
    where the device is a GPU, and are copied when they are asked for.
    """

    def __init__(self, device: torch.device, device_bytes: int) -> None:
        self._device = device
        self._room = device_bytes
        self._states: list[torch.Tensor] = []
        self.on_device = 0

    def append(self, states: torch.Tensor) -> None:
        """``states``: of the next window, on the device."""
        size = states.numel() * states.element_size()
        if size <= self._room:
            self._room -= size
            self.on_device += 1
            self._states.append(states.clone())
            return
        # Nothing after it stays on the device: windows are asked for in this order.
        self._room = 0
        host = torch.empty(states.shape, dtype=states.dtype, device="cpu", pin_memory=states.is_cuda)
        self._states.append(host.copy_(states))

    def __len__(self) -> int:
        return len(self._states)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[one] for one in range(*index.indices(len(self)))]
        return BaseModelOutput(last_hidden_state=self._states[index].to(self._device, non_blocking=True))


def precompute(
    model: Any, windows: Sequence[Inputs], batch: int, device_bytes: int, encoder: Encoder | None = None
) -> Precomputed:
    """Encode ``windows``, arguments of ``generate`` with a batch of one each, ``batch`` of one shape at a time.

    What is left over of the last batch, or of one shape, goes one at a time: a smaller batch would have kernels of its own,
    which nobody compared. ``encoder``: what encodes a batch; eager's encoder where there is none. Prints its progress.
    """
    if batch < 1:
        raise UserError(f"The encoder's batch is {batch}; it has to be at least 1.")
    encode = encoder or (lambda inputs: encode_as_generate(model, inputs))
    outputs = Precomputed(model.device, device_bytes)
    with Progress("encoder", len(windows)) as progress, torch.no_grad():
        for indices in _batches(windows, batch):
            with InOrder() if len(indices) > 1 else nullcontext():
                states = encode(together([windows[index] for index in indices]))
            for index, one in zip(indices, states.split(1), strict=True):
                outputs.append(one)
                progress.step(f"window {index}")
    return outputs


def encode_as_generate(model: Any, inputs: Inputs) -> torch.Tensor:
    """Hidden states ``(windows, positions, hidden)`` from the call of the encoder that ``generate`` would make."""
    tensor, name, arguments = model._prepare_model_inputs(None, None, dict(inputs))
    encode = next(getattr(model, method) for method in _ENCODES if hasattr(model, method))
    prepared = encode(tensor, arguments, name, model.generation_config)
    states: torch.Tensor = prepared["encoder_outputs"][0]
    return states


class InOrder(TorchFunctionMode):
    """Puts what is permuted into memory in its new order.

    A speech encoder permutes what its convolutions made, and every sum onto it keeps that order of memory: each layer then
    adds across strides, and copies its input before it normalises it. Here it is copied once. Every value is the same, and is
    added to the same one, so bits are too.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result.contiguous() if func is torch.Tensor.permute else result


class CapturedEncoder:
    """Eager's encoder as a graph for each shape of its inputs. Raises ``Refused`` where it cannot be captured."""

    def __init__(self, model: Any, capturer: Capturer) -> None:
        self._model = model
        self._capturer = capturer
        self._captured: dict[tuple[Form, Full], tuple[StepInputs, Graph]] = {}

    def __call__(self, inputs: Inputs) -> torch.Tensor:
        """Hidden states ``(windows, positions, hidden)``, overwritten by the next call."""
        key = (form_of(inputs), full_masks(inputs))
        if key not in self._captured:
            self._captured[key] = self._capture(inputs, key[1])
        buffers, graph = self._captured[key]
        buffers.fill(inputs)
        buffers.forget()
        graph.replay()
        return graph.outputs[0]

    def _capture(self, inputs: Inputs, full: Full) -> tuple[StepInputs, Graph]:
        buffers = StepInputs(inputs, 0)
        buffers.fill(inputs)

        def encode() -> tuple[torch.Tensor, ...]:
            with masks_known(full), InOrder():
                return (encode_as_generate(self._model, buffers.at(0)),)

        return buffers, self._capturer.capture(encode)


def grade_of(
    model: Any, windows: Sequence[Inputs], outputs: Precomputed, generate: Callable[..., torch.Tensor], **arguments: Any
) -> str | None:
    """How exact ``outputs`` are against eager's encoder, one window at a time, on this device.

    ``bit-identical``: the same bits; ``token-identical``: the same tokens from ``generate``, called with ``arguments``, for
    every window; None: neither.
    """
    with torch.no_grad():
        expected = [encode_as_generate(model, window) for window in windows]
    if all(same_bits(ours[0], theirs) for ours, theirs in zip(outputs, expected, strict=True)):
        return BIT_IDENTICAL
    for window, ours, theirs in zip(windows, outputs, expected, strict=True):
        got = generate(**window, encoder_outputs=ours, **arguments)
        if not torch.equal(got, generate(**window, encoder_outputs=BaseModelOutput(last_hidden_state=theirs), **arguments)):
            return None
    return TOKEN_IDENTICAL


def _batches(windows: Sequence[Inputs], batch: int) -> Iterator[range]:
    """Whole batches of windows whose inputs have one shape, and single ones."""
    if batch == 1:
        yield from (range(index, index + 1) for index in range(len(windows)))
        return
    first = 0
    while first < len(windows):
        last, form = first + 1, form_of(windows[first])
        while last < len(windows) and last - first < batch and form_of(windows[last]) == form:
            last += 1
        step = last - first if last - first == batch else 1
        yield from (range(index, index + step) for index in range(first, last, step))
        first = last


def same_bits(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Whether two tensors of any shapes and dtypes are the same bits in the same form."""
    if (ours.shape, ours.dtype) != (theirs.shape, theirs.dtype):
        return False
    return torch.equal(ours.contiguous().view(torch.uint8), theirs.contiguous().view(torch.uint8))
