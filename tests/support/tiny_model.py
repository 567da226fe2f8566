"""``python -m tests.support.tiny_model DIR``: a Hugging Face model directory of some 100 kB, from a seed.

It speaks noise, deterministically. For engines that load a real model through the real code. Its files are
written without torch and transformers, whose import takes seconds.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)

_TOKENIZER: Mapping[str, Any] = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "pad_token": "</s>",
    "model_max_length": 512,
}

_FAST = {"tokenizer_class": "PreTrainedTokenizerFast"}

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


def make(directory: Path, seed: int = 3, sizes: Mapping[str, int] | None = None) -> None:
    """Write config, weights and a byte-level tokenizer with a chat template. ``sizes`` are members of the
    config that are to be others.

    Only lower-case letters are ever said, so every token is a piece of text; the end is never said.
    """
    import numpy
    from safetensors.numpy import save_file

    members = {**_SIZES, **(sizes or {})}
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer, vocabulary = _tokenizer()
    tokenizer.save(str(directory / "tokenizer.json"))
    said = [index for letter, index in vocabulary.items() if letter.isascii() and letter.islower()]
    noise = numpy.random.default_rng(seed)
    spread = members["hidden_size"] ** -0.5  # each layer has its say in what comes next
    weights = {
        name: numpy.ones(shape, "float32")
        if len(shape) == 1
        else noise.normal(0.0, spread, shape).astype("float32")
        for name, shape in _shapes(members).items()
    }
    silent = numpy.ones(members["vocab_size"], bool)
    silent[said] = False
    weights["lm_head.weight"][silent] = 0.0
    save_file(weights, directory / "model.safetensors", {"format": "pt"})
    kind = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "float32"}
    ends = {name: number for name, number in members.items() if name.endswith("_token_id")}
    for name, content in (
        ("config", kind | members),
        ("generation_config", ends),
        ("tokenizer_config", {**_TOKENIZER, **_FAST}),
    ):
        (directory / f"{name}.json").write_text(json.dumps(content))
    (directory / "chat_template.jinja").write_text(_TEMPLATE)


def _shapes(members: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """Name → shape of each weight of a Llama without biases."""
    hidden, inner, vocabulary = (members[f"{name}_size"] for name in ("hidden", "intermediate", "vocab"))
    keys = hidden // members["num_attention_heads"] * members["num_key_value_heads"]
    layer = {
        "input_layernorm": (hidden,),
        "self_attn.q_proj": (hidden, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, hidden),
        "post_attention_layernorm": (hidden,),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    return {
        "model.embed_tokens.weight": (vocabulary, hidden),
        **{
            f"model.layers.{number}.{name}.weight": shape
            for number in range(members["num_hidden_layers"])
            for name, shape in layer.items()
        },
        "model.norm.weight": (hidden,),
        "lm_head.weight": (vocabulary, hidden),
    }


def make_encoder(directory: Path, seed: int = 7) -> None:
    """Write a model of like size that gives embeddings and no text."""
    import torch
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    torch.manual_seed(seed)
    sizes: Any = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    network = BertModel(BertConfig(vocab_size=258, max_position_embeddings=512, pad_token_id=257, **sizes))
    save(network, directory)
    tokenizer: Any = PreTrainedTokenizerFast
    tokenizer(tokenizer_object=_tokenizer()[0], **_TOKENIZER).save_pretrained(directory)


def save(network: Any, directory: Path) -> None:
    """As ``network.save_pretrained`` does, which imports PyTorch's compiler."""
    from safetensors.torch import save_file

    directory.mkdir(parents=True, exist_ok=True)
    network.config.architectures, network.config.dtype = [type(network).__name__], network.dtype
    network.config.save_pretrained(directory)
    if network.can_generate():
        network.generation_config.save_pretrained(directory)
    weights = {each.data_ptr(): (name, each) for name, each in reversed(network.state_dict().items())}
    save_file(dict(weights.values()), directory / "model.safetensors", {"format": "pt"})  # shared ones once


def _tokenizer() -> tuple[Any, dict[str, int]]:
    """One token for a byte, and the number of each."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    bytes_of = {letter: index for index, letter in enumerate(letters)}
    tokenizer = Tokenizer(models.BPE(vocab=bytes_of | {"<s>": 256, "</s>": 257}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in ("<s>", "</s>")])
    return tokenizer, bytes_of


if __name__ == "__main__":
    make(Path(sys.argv[1]))
