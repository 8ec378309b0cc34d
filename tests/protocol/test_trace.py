"""The recorded evidence of one answer."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
import torch

from exactgraph.protocol.bandwidth import copy_bandwidth, step_bytes
from exactgraph.protocol.questions import Question
from exactgraph.protocol.trace import record, record_sets

CPU = torch.device("cpu")
VOCABULARY, HIDDEN = 64, 32


def tiny(tied: bool = False) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=HIDDEN,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=VOCABULARY,
        max_position_embeddings=64,
        initializer_range=0.3,
        tie_word_embeddings=tied,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
    )
    model = LlamaForCausalLM(config).eval()
    model.generation_config.eos_token_id = None
    return model


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny()


QUESTION = Question("heldout/0", (5, 9, 33, 7), 6)


def test_tokens_digests_and_margins_are_those_of_the_logits(model: Any) -> None:
    found = record(model.generate, QUESTION, CPU)
    ids = torch.tensor([QUESTION.ids])
    for step, token in enumerate(found["tokens"]):
        with torch.no_grad():
            logits = model(ids).logits[0, -1]
        best, second = logits.sort(descending=True).values[:2].tolist()
        assert token == int(logits.argmax())
        # Recomputed without a cache, so equal up to rounding only.
        assert found["margins"][step] == pytest.approx(best - second, abs=1e-4)
        ids = torch.cat([ids, torch.tensor([[token]])], dim=1)
    assert len(found["tokens"]) == len(found["logits"]) == len(found["margins"]) == 6
    assert (found["prompt"], found["prompt_tokens"], found["prompt_digest"]) == ("heldout/0", 4, QUESTION.digest)


def test_digests_are_of_the_raw_fp32_bytes(model: Any) -> None:
    raw = model.generate(
        torch.tensor([QUESTION.ids]), max_new_tokens=6, do_sample=False, return_dict_in_generate=True, output_logits=True
    ).logits
    expected = [hashlib.sha256(step[0].float().numpy().tobytes()).hexdigest() for step in raw]
    assert record(model.generate, QUESTION, CPU)["logits"] == expected
    assert len(set(expected)) == 6


def test_recording_twice_gives_the_same_evidence(model: Any) -> None:
    assert record(model.generate, QUESTION, CPU) == record(model.generate, QUESTION, CPU)


@pytest.mark.parametrize("step", [0, 3, 5])
def test_one_flipped_bit_of_one_logit_changes_the_digest_of_its_step_alone(model: Any, step: int) -> None:
    def flipped(**arguments: Any) -> Any:
        output = model.generate(**arguments)
        output.logits[step].view(torch.int32)[0, 17] ^= 1
        return output

    right, wrong = record(model.generate, QUESTION, CPU), record(flipped, QUESTION, CPU)
    assert right["tokens"] == wrong["tokens"]
    assert [right["logits"][i] == wrong["logits"][i] for i in range(6)] == [i != step for i in range(6)]


def test_processors_do_not_reach_the_recorded_logits(model: Any) -> None:
    def penalised(**arguments: Any) -> Any:
        return model.generate(**arguments, repetition_penalty=1.5)

    assert record(penalised, QUESTION, CPU)["logits"][0] == record(model.generate, QUESTION, CPU)["logits"][0]


def test_sets_keep_their_order_and_progress_is_told(model: Any) -> None:
    other = Question("long/0", (3, 4), 2)
    told: list[str] = []
    sets = record_sets(model.generate, {"heldout": [QUESTION, QUESTION], "long": [other]}, CPU, told.append)
    assert told == ["heldout/0", "heldout/0", "long/0"]
    assert [len(sets["heldout"]), len(sets["long"])] == [2, 1]
    assert sets["long"][0] == record(model.generate, other, CPU)


def test_a_step_reads_all_weights_but_an_untied_embedding_table() -> None:
    untied, tied = tiny(), tiny(tied=True)
    table = VOCABULARY * HIDDEN * 4
    assert tied.get_output_embeddings().weight is tied.get_input_embeddings().weight
    # Both read the layers and one table: the head's own, or the shared one.
    assert step_bytes(tied) == step_bytes(untied)
    assert step_bytes(untied) == 4 * sum(weight.numel() for weight in untied.parameters()) - table
    assert step_bytes(untied.to(torch.bfloat16)) * 2 == step_bytes(tied)


def test_a_step_of_an_encoder_decoder_reads_no_weights_of_the_encoder() -> None:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "vocab_size": 64, "num_mel_bins": 8}
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 3}
    model = WhisperForConditionalGeneration(WhisperConfig(**sizes, **heads, **special))
    # The head is tied to the embedding, so the table is read whole.
    assert step_bytes(model) == 4 * sum(weight.numel() for weight in model.model.decoder.parameters())


@pytest.mark.gpu
def test_the_copy_bandwidth_of_a_gpu_is_plausible() -> None:
    # Between a slow laptop's 50 GB/s and ten times the fastest of today.
    assert 5e10 < copy_bandwidth(torch.device("cuda", 0)) < 8e13
