"""Each candidate against eager, bit by bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from runtime_models import prompt

from exactgraph.runtime.session import Session

Install = Callable[..., Session]


def answers(
    generate: Callable[..., Any], ids: torch.Tensor, tokens: int, **arguments: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sequences and all logits, ``(tokens, vocabulary)``, of one call."""
    output = generate(
        ids, max_new_tokens=tokens, return_dict_in_generate=True, output_logits=True, **{"do_sample": False, **arguments}
    )
    return output.sequences, torch.cat(output.logits)


def assert_same(got: tuple[torch.Tensor, torch.Tensor], expected: tuple[torch.Tensor, torch.Tensor]) -> None:
    assert torch.equal(got[0], expected[0])
    assert torch.equal(got[1].view(torch.int32), expected[1].view(torch.int32))


def test_the_answers_under_test_are_not_degenerate(llama: Any) -> None:
    sequences, _ = answers(llama.generate, prompt(llama.device, 12), 48)
    assert len(set(sequences[0, 12:].tolist())) > 16


@pytest.mark.parametrize("name", ["null", "C022", "step"])
def test_a_candidate_has_eagers_bits(llama: Any, install: Install, name: str) -> None:
    with install(name) as session:
        for tokens, seed in ((9, 1), (40, 2), (9, 3)):
            ids = prompt(llama.device, tokens, seed)
            assert_same(answers(llama.generate, ids, 48), answers(session.eager, ids, 48))
            assert session.last is not None
            assert session.last.refusal is None


def test_step_replays_graphs_for_every_step_in_its_budget(llama: Any, install: Install) -> None:
    with install("step") as session:
        answers(llama.generate, prompt(llama.device, 10), 30)
        assert session.last is not None
        assert session.last.steps is not None
        assert (session.last.steps.captured, session.last.steps.eager) == (29, 0)


@pytest.mark.parametrize("name", ["C022", "step"])
def test_sampling_at_a_seed_gives_eagers_tokens_and_leaves_eagers_generator(llama: Any, install: Install, name: str) -> None:
    ids = prompt(llama.device, 10)
    arguments = {"do_sample": True, "temperature": 0.8, "top_k": 40, "top_p": 0.9}
    with install(name) as session:
        torch.manual_seed(7)
        expected = answers(session.eager, ids, 40, **arguments)
        after = torch.rand(4, device=llama.device)
        torch.manual_seed(7)
        assert_same(answers(llama.generate, ids, 40, **arguments), expected)
        assert torch.equal(torch.rand(4, device=llama.device), after)


def test_a_changed_rounding_shows_in_the_logits(llama: Any, install: Install) -> None:
    ids = prompt(llama.device, 10)
    with install("wrong-ulp") as session:
        _, wrong = answers(llama.generate, ids, 8)
        _, right = answers(session.eager, ids, 8)
    assert not torch.equal(wrong, right)
    assert torch.allclose(wrong, right, atol=0.1)


def test_wrong_late_is_right_up_to_validations_longest_and_wrong_after(llama: Any, install: Install) -> None:
    with install("wrong-late", validated=30) as session:
        ids = prompt(llama.device, 10)
        assert_same(answers(llama.generate, ids, 21), answers(session.eager, ids, 21))
        late, _ = answers(llama.generate, ids, 40)
        right, _ = answers(session.eager, ids, 40)
    assert not torch.equal(late, right)
