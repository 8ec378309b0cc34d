"""Emulated capture shows the faults that real graphs have."""

from __future__ import annotations

import pytest
import torch

from exactgraph.capture import capturer_for
from exactgraph.capture.emulated import EmulatedCapturer

CPU = torch.device("cpu")


def test_a_cpu_gets_emulation() -> None:
    assert isinstance(capturer_for(CPU), EmulatedCapturer)
    assert capturer_for(CPU).emulated


def test_outputs_are_undefined_before_the_first_replay() -> None:
    static = torch.ones(3)
    graph = EmulatedCapturer().capture(lambda: (static * 2, static.argmax().reshape(1), static > 0))
    floats, integers, _ = graph.outputs
    assert floats.isnan().all()
    assert (integers == -1).all()
    graph.replay()
    assert torch.equal(floats, torch.full((3,), 2.0))
    assert torch.equal(integers, torch.zeros(1, dtype=torch.int64))


def test_a_replay_reads_the_static_inputs_afresh_and_overwrites_the_same_outputs() -> None:
    static = torch.zeros(4)
    graph = EmulatedCapturer().capture(lambda: (static + 1,))
    (output,) = graph.outputs
    address = output.data_ptr()
    graph.replay()
    held = output
    static.fill_(5)
    assert torch.equal(held, torch.ones(4)), "nothing happens without a replay"
    graph.replay()
    assert torch.equal(held, torch.full((4,), 6.0)), "an output that was not copied is overwritten"
    assert graph.outputs[0].data_ptr() == address


def test_an_output_does_not_alias_what_the_function_returned() -> None:
    static = torch.ones(2)
    graph = EmulatedCapturer().capture(lambda: (static,))
    graph.replay()
    graph.outputs[0].zero_()
    assert torch.equal(static, torch.ones(2))


def test_side_effects_happen_in_order_at_every_replay() -> None:
    static, slots = torch.zeros(1), torch.zeros(3)

    def write_then_read() -> tuple[torch.Tensor, ...]:
        slots[1:2].copy_(static)
        return (slots.sum().reshape(1),)

    graph = EmulatedCapturer().capture(write_then_read)
    static.fill_(4)
    slots[0] = 2
    graph.replay()
    assert graph.outputs[0].item() == 6


def test_costs_are_counted() -> None:
    capturer = EmulatedCapturer()
    for _ in range(3):
        capturer.capture(lambda: (torch.zeros(1),))
    assert capturer.graphs == 3
    assert capturer.seconds > 0
    assert capturer.bytes == 0


def test_no_gradients_are_recorded() -> None:
    weight = torch.ones(2, requires_grad=True)
    graph = EmulatedCapturer().capture(lambda: (weight * 2,))
    graph.replay()
    assert not graph.outputs[0].requires_grad


def test_an_error_of_the_function_is_the_callers() -> None:
    def broken() -> tuple[torch.Tensor, ...]:
        raise ZeroDivisionError

    capturer = EmulatedCapturer()
    with pytest.raises(ZeroDivisionError):
        capturer.capture(broken)
    assert capturer.graphs == 0


def test_another_replay_leaves_outputs_undefined() -> None:
    capturer = EmulatedCapturer()
    first, second = (capturer.capture(lambda: (torch.ones(2),)) for _ in range(2))
    first.replay()
    kept = first.outputs[0].clone()
    second.replay()
    assert kept.tolist() == second.outputs[0].tolist() == [1, 1]
    assert first.outputs[0].isnan().all()
