"""``python -m tests.support.tiny_model DIR``: a Hugging Face model directory of some 100 kB, from a seed.

It speaks noise, deterministically. For engines that load a real model through the real code; made in a
process of its own, so that the tests need not import torch.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)

_SIZES = {
    "vocab_size": 258,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 256,
    "eos_token_id": 257,
    "pad_token_id": 257,
}


def make(directory: Path, seed: int = 7, sizes: Mapping[str, int] | None = None) -> None:
    """Write config, weights and a byte-level tokenizer with a chat template. ``sizes`` are members of the
    config that are to be others.

    Only lower-case letters are ever said, so every token is a piece of text; the end is never said.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    fast, vocabulary = _tokenizer()
    fast.chat_template = _TEMPLATE
    torch.manual_seed(seed)
    members: dict[str, Any] = {**_SIZES, **(sizes or {})}
    config = LlamaConfig(**members)
    network = LlamaForCausalLM(config)
    said = torch.tensor(
        [
            index
            for letter, index in vocabulary.items()
            if index < 256 and letter.isascii() and letter.islower()
        ]
    )
    weights = torch.zeros_like(network.lm_head.weight)
    weights[said] = network.lm_head.weight.detach()[said]
    network.lm_head.weight.data = weights
    network.save_pretrained(directory)
    fast.save_pretrained(directory)


def make_encoder(directory: Path, seed: int = 7) -> None:
    """Write a model of like size that gives embeddings and no text."""
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(seed)
    sizes: Any = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    network = BertModel(BertConfig(vocab_size=258, max_position_embeddings=512, pad_token_id=257, **sizes))
    network.save_pretrained(directory)
    _tokenizer()[0].save_pretrained(directory)


def _tokenizer() -> tuple[Any, dict[str, int]]:
    """One token for a byte, and the number of each."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: index for index, letter in enumerate(letters)} | {"<s>": 256, "</s>": 257}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="</s>", model_max_length=512
    )
    return fast, vocabulary


if __name__ == "__main__":
    from agent.engines.torch.lean_imports import import_transformers

    import_transformers()  # all of it takes two fifths of this process's time
    make(Path(sys.argv[1]))
