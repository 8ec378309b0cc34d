"""The tokenizer inside a GGUF file, rebuilt for Hugging Face.

Built here because transformers' own GGUF route leaves out the splitter that makes every digit a token of its own, and so
tokenises numbers as the model never saw them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

if TYPE_CHECKING:
    from exactgraph.sources.gguf import Metadata

# llama.cpp's token types (enum llama_token_type): control tokens such as <|im_end|>, and ones the model's makers added.
_CONTROL, _USER_DEFINED = 3, 4


def write_tokenizer(metadata: Metadata, max_length: int, folder: Path) -> None:
    """Write ``tokenizer.json``, ``tokenizer_config.json`` and the chat template, where the file has one, into ``folder``."""
    metadata.expect("tokenizer.ggml.model", "gpt2")
    # The name of a pre-tokenizer is all that a GGUF file says about it; this one is digits, then GPT-2's pattern.
    metadata.expect("tokenizer.ggml.pre", "smollm")
    tokens: list[str] = metadata.need("tokenizer.ggml.tokens")
    types: list[int] = metadata.need("tokenizer.ggml.token_type")
    merges = [tuple(merge.split(" ", 1)) for merge in metadata.need("tokenizer.ggml.merges")]

    tokenizer = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    for wanted, special in ((_CONTROL, True), (_USER_DEFINED, False)):
        added = [token for token, kind in zip(tokens, types, strict=True) if kind == wanted]
        tokenizer.add_tokens([AddedToken(token, special=special, normalized=False) for token in added])

    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    ids = {name: metadata.get(f"tokenizer.ggml.{key}_token_id") for name, key in names.items()}
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
        **{name: tokens[index] for name, index in ids.items() if index is not None},
    )
    fast.chat_template = metadata.get("tokenizer.chat_template")
    fast.save_pretrained(folder)
