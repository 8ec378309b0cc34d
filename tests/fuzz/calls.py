"""How people call ``generate``. Each kind makes one or several calls and gives all that they returned, as JSON."""

from __future__ import annotations

import threading
from collections.abc import Callable
from random import Random
from typing import Any

import torch
from tests.fuzz.mutations import MUTATIONS
from tests.fuzz.results import Result, attempted, bits, of_cache, of_output, of_random
from tests.fuzz.world import World
from transformers import DynamicCache, GenerationConfig, LogitsProcessorList, StoppingCriteriaList

from exactgraph.models.cache import cache_name, cache_of

Call = Callable[[World, Random], list[Result]]
_ALL = {"return_dict_in_generate": True, "output_logits": True, "output_scores": True}
_INSIDE = (
    "write",
    "write-data",
    "replace",
    "move-data",
    "hook",
    "mode",
    "attention",
    "autocast",
    "flags",
    "configuration",
    "functions",
)


def ask(world: World, chance: Random, rows: int = 1, **arguments: Any) -> Result:
    """One call from a seed: what it returned, and where it left the generators of random numbers."""
    ids = world.prompt(chance.choice((1, 5, 9, 18)), chance.getrandbits(16), rows)
    seed = chance.getrandbits(16)
    defaults = {"max_new_tokens": chance.choice((2, 6, 10)), "do_sample": False, **(_ALL if chance.random() < 0.7 else {})}
    if "inputs_embeds" not in arguments:
        arguments = {"input_ids": ids, **arguments}
    torch.manual_seed(seed)
    result = attempted(lambda: of_output(world.generate(**{**defaults, **arguments})))
    return {**result, "random": of_random(world.device)}


def greedy(world: World, chance: Random) -> list[Result]:
    return [ask(world, chance), ask(world, chance)]


def sampling(world: World, chance: Random) -> list[Result]:
    settings = [
        {"temperature": 0.7},
        {"top_k": 5},
        {"top_p": 0.8},
        {"min_p": 0.05},
        {"typical_p": 0.9},
        {"epsilon_cutoff": 0.01},
        {},
    ]
    return [ask(world, chance, do_sample=True, **chance.choice(settings)) for _ in range(2)]


def penalties(world: World, chance: Random) -> list[Result]:
    settings: list[dict[str, Any]] = [
        {"repetition_penalty": 1.4},
        {"no_repeat_ngram_size": 2},
        {"bad_words_ids": [[3], [4, 5]]},
        {"min_new_tokens": 4, "eos_token_id": 7},
        {"suppress_tokens": [2, 3, 4]},
        {"begin_suppress_tokens": [9]},
        {"sequence_bias": {(5,): 4.0}},
        {"exponential_decay_length_penalty": (2, 1.5), "eos_token_id": 7},
        {"guidance_scale": 1.5},
        {"renormalize_logits": True, "do_sample": True},
    ]
    return [ask(world, chance, **chance.choice(settings)) for _ in range(2)]


def outputs(world: World, chance: Random) -> list[Result]:
    more = chance.choice(({}, {"output_hidden_states": True}, {"output_attentions": True}, {"output_logits": False}))
    return [ask(world, chance, **{**_ALL, **more}), ask(world, chance, **_ALL)]


def several(world: World, chance: Random) -> list[Result]:
    if chance.random() < 0.5:
        return [ask(world, chance, do_sample=True, num_return_sequences=2)]
    return [ask(world, chance, rows=2)]


def beams(world: World, chance: Random) -> list[Result]:
    more = chance.choice(
        ({}, {"do_sample": True}, {"num_return_sequences": 2}, {"early_stopping": True, "length_penalty": 0.5})
    )
    return [ask(world, chance, num_beams=2, **more)]


def padding(world: World, chance: Random) -> list[Result]:
    rows = chance.choice((1, 2))
    ids = world.prompt(9, chance.getrandbits(16), rows)
    mask = torch.ones_like(ids)
    mask[0, : chance.choice((1, 4))] = 0
    if chance.random() < 0.2:
        mask[0] = 1
    return [ask(world, chance, input_ids=ids, attention_mask=mask)]


def processor(world: World, chance: Random) -> list[Result]:
    """A function of the user's own that keeps, changes in place, or replaces what it is given."""
    how, seen = chance.choice(("keeps", "in place", "replaces", "writes tokens")), []

    def own(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        seen.append(scores)
        if how == "in place":
            scores[:, ::2] -= 3.0
        elif how == "writes tokens" and input_ids.shape[1] > 1:
            input_ids[0, 0] = 5
        return scores.roll(1, dims=-1) if how == "replaces" else scores

    return [ask(world, chance, logits_processor=LogitsProcessorList([own])), {"seen": bits(seen)}]


class Streamer:
    """Keeps what it is given, and acts at the put number ``at``."""

    def __init__(self, act: Callable[[], None] = lambda: None, at: int = -1) -> None:
        self.given: list[Any] = []
        self._act, self._at = act, at

    def put(self, value: torch.Tensor) -> None:
        if len(self.given) == self._at:
            self._act()
        self.given.append(value)

    def end(self) -> None:
        self.given.append("end")


def streamer(world: World, chance: Random) -> list[Result]:
    own = Streamer()
    return [ask(world, chance, streamer=own, do_sample=chance.random() < 0.5), {"given": bits(own.given)}]


def criterion(world: World, chance: Random) -> list[Result]:
    at, seen = chance.choice((6, 10, 20)), []

    def own(input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        seen.append((input_ids, scores))
        return torch.full((input_ids.shape[0],), input_ids.shape[1] >= at, device=input_ids.device)

    return [ask(world, chance, stopping_criteria=StoppingCriteriaList([own])), {"seen": bits(seen)}]


def own_cache(world: World, chance: Random) -> list[Result]:
    """A cache that the user goes on with: their own over two calls, or the one that the first call returned."""
    name, ids = cache_name(world.model), world.prompt(7, chance.getrandbits(16))
    theirs = chance.random() < 0.6
    returned = {**_ALL} if not theirs or chance.random() < 0.5 else {}
    settings: dict[str, Any] = {"max_new_tokens": 5, "do_sample": False, **returned}
    kept = DynamicCache(config=world.model.config)
    results: list[Result] = []

    def both() -> Result:
        cache = kept
        sequence = ids
        for _ in range(2):
            given = {name: cache} if theirs or results else {}
            output = world.generate(input_ids=sequence, **given, **settings)
            results.append(of_output(output))
            if not theirs:
                cache = cache_of(output)
            sequence = torch.cat([output if isinstance(output, torch.Tensor) else output.sequences, ids[:, :2]], dim=-1)
            results.append(of_cache(cache))
        return {}

    ended = attempted(both)
    return [*results, ended]


def embeddings(world: World, chance: Random) -> list[Result]:
    ids = world.prompt(6, chance.getrandbits(16))
    with torch.no_grad():
        embedded = world.model.get_input_embeddings()(ids)
    return [ask(world, chance, inputs_embeds=embedded), ask(world, chance)]


def lengths(world: World, chance: Random) -> list[Result]:
    given = chance.choice(
        ({"max_new_tokens": 1}, {"max_new_tokens": 40}, {"max_new_tokens": None, "max_length": 30}, {"min_length": 20})
    )
    return [ask(world, chance, **given), ask(world, chance, max_new_tokens=3)]


def end_tokens(world: World, chance: Random) -> list[Result]:
    """An end that greedy decoding does reach: a token of its own answer."""
    ids = world.prompt(6, chance.getrandbits(16))
    first = attempted(lambda: of_output(world.generate(input_ids=ids, max_new_tokens=8, do_sample=False)))
    if "error" in first:
        return [first]
    end = first["tokens"][0][-3]
    return [first, ask(world, chance, input_ids=ids, max_new_tokens=12, eos_token_id=chance.choice((end, [end, 3])))]


def kept_logits(world: World, chance: Random) -> list[Result]:
    """Two answers, both kept while the other is made; and what the caller does to the first changes nothing in the second."""
    first_ids, second_ids = world.prompt(5, chance.getrandbits(16)), world.prompt(5, chance.getrandbits(16))
    settings: dict[str, Any] = {"max_new_tokens": 8, "do_sample": False, **_ALL}

    def both() -> Result:
        first = world.generate(input_ids=first_ids, **settings)
        second = world.generate(input_ids=second_ids, **settings)
        result = {"first": of_output(first), "second": of_output(second)}
        for step in first.logits:
            step.zero_()
        return {**result, "third": of_output(world.generate(input_ids=first_ids, **settings)), "again": of_output(second)}

    return [attempted(both)]


def nested(world: World, chance: Random) -> list[Result]:
    """A processor that generates."""
    inner: list[Result] = []
    ids = world.prompt(4, chance.getrandbits(16))

    def own(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if input_ids.shape[1] % 3 == 0:
            inner.append(of_output(world.model.generate(input_ids=ids, max_new_tokens=3, do_sample=False, **_ALL)))
        return scores

    outer = ask(world, chance, logits_processor=LogitsProcessorList([own]))
    return [outer, *inner]


def threads(world: World, chance: Random) -> list[Result]:
    """Two threads at once where a session orders them; one after the other under eager, which has no such order."""
    prompts = [world.prompt(tokens, chance.getrandbits(16)) for tokens in (5, 8)]
    answers: dict[int, Result] = {}

    def work(index: int) -> None:
        settings: dict[str, Any] = {"max_new_tokens": 7, "do_sample": False, **_ALL}
        answers[index] = attempted(lambda: of_output(world.generate(input_ids=prompts[index], **settings)))

    if world.device.type == "cuda":
        # A thread begins on the default stream, which does not wait for the one that the model was changed on.
        torch.cuda.synchronize()
    workers = [threading.Thread(target=work, args=(index,)) for index in (0, 1)]
    for worker in workers:
        worker.start()
        if not world.serialised:
            worker.join()
    for worker in workers:
        worker.join()
    return [answers[0], answers[1]]


class Interrupted(Exception):
    """Raised in the middle of a call."""


def errors(world: World, chance: Random) -> list[Result]:
    """A processor or a streamer dies; then the model is asked again."""

    def breaks() -> None:
        raise Interrupted

    def own(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        seen.append(scores)
        if len(seen) == at:
            breaks()
        return scores

    at, seen = chance.choice((1, 3)), []
    inside: dict[str, Any] = {"logits_processor": LogitsProcessorList([own])}
    if chance.random() < 0.5:
        inside = {"streamer": Streamer(breaks, at)}
    return [ask(world, chance, max_new_tokens=6, **inside), ask(world, chance)]


def changes_inside(world: World, chance: Random) -> list[Result]:
    """A processor, a criterion or a streamer changes the model in the middle of a call, until it is restored."""
    where, kind, seed = chance.choice(("processor", "criterion", "streamer")), chance.choice(_INSIDE), chance.getrandbits(16)
    at, seen = chance.choice((1, 2, 4)), []

    def act() -> None:
        world.undo.enter_context(MUTATIONS[kind](world, Random(seed)))

    def count() -> None:
        seen.append(1)
        if len(seen) == at:
            act()

    def process(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        count()
        return scores

    def criterion(input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        count()
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)

    inside: dict[str, Any] = {
        "processor": {"logits_processor": LogitsProcessorList([process])},
        "criterion": {"stopping_criteria": StoppingCriteriaList([criterion])},
        "streamer": {"streamer": Streamer(act, at)},
    }[where]
    return [ask(world, chance, max_new_tokens=8, **_ALL, **inside), ask(world, chance)]


def configuration_object(world: World, chance: Random) -> list[Result]:
    settings: dict[str, Any] = {"max_new_tokens": 6, "do_sample": chance.random() < 0.5, "top_k": 9, **_ALL}
    config = GenerationConfig(**settings, pad_token_id=1)
    ids, seed = world.prompt(6, chance.getrandbits(16)), chance.getrandbits(16)
    torch.manual_seed(seed)
    result = attempted(lambda: of_output(world.generate(input_ids=ids, generation_config=config)))
    return [result, {"random": of_random(world.device), "config": config.to_dict()["top_k"]}]


def direct(world: World, chance: Random) -> list[Result]:
    """The model called by hand before and after: outside ``generate`` nothing stands in."""
    ids = world.prompt(6, chance.getrandbits(16))

    def by_hand() -> Result:
        with torch.no_grad():
            return {"logits": bits(world.forward(ids))}

    return [attempted(by_hand), ask(world, chance), attempted(by_hand)]


def assisted(world: World, chance: Random) -> list[Result]:
    more = chance.choice(({"prompt_lookup_num_tokens": 2}, {"use_cache": False}, {"prefill_chunk_size": 4}))
    return [ask(world, chance, **more)]


CALLS: dict[str, Call] = {
    "greedy": greedy,
    "sampling": sampling,
    "penalties": penalties,
    "outputs": outputs,
    "several": several,
    "beams": beams,
    "padding": padding,
    "processor": processor,
    "streamer": streamer,
    "criterion": criterion,
    "own-cache": own_cache,
    "embeddings": embeddings,
    "lengths": lengths,
    "end-tokens": end_tokens,
    "kept-logits": kept_logits,
    "nested": nested,
    "threads": threads,
    "errors": errors,
    "changes-inside": changes_inside,
    "configuration-object": configuration_object,
    "direct": direct,
    "assisted": assisted,
}
