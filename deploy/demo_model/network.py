"""The demo model's shape, its optimisers, its files, and its greedy answers."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from agent.engines.torch import embedding
from deploy.demo_model.vocabulary import CONTEXT_TOKENS, END, PAD, SIZE, SPECIAL, TEXT

WEIGHTS_FILE: Final = "model.safetensors"
MATRIX_RATE: Final = 0.02
OTHER_RATE: Final = 0.004
BATCH: Final = 16
LONGEST_TOKENS: Final = 512

SHAPE: Final[dict[str, Any]] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "dtype": "float32",
    "vocab_size": SIZE,
    "hidden_size": 192,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
    "head_dim": 32,
    "hidden_act": "silu",
    "max_position_embeddings": CONTEXT_TOKENS,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "tie_word_embeddings": True,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "mlp_bias": False,
    "initializer_range": 0.02,
    "use_cache": True,
    "bos_token_id": SPECIAL.index(TEXT),
    "eos_token_id": SPECIAL.index(END),
    "pad_token_id": SPECIAL.index(PAD),
}
"""config.json. The weights are stored as float16 and computed with as float32."""

GENERATION: Final[dict[str, Any]] = {
    "do_sample": False,
    "max_new_tokens": 512,
    "bos_token_id": SPECIAL.index(TEXT),
    "eos_token_id": SPECIAL.index(END),
    "pad_token_id": SPECIAL.index(PAD),
}
"""generation_config.json: greedy."""


def fresh(seed: int) -> LlamaForCausalLM:
    """An untrained model."""
    torch.manual_seed(seed)
    return _untrained()


def _untrained() -> LlamaForCausalLM:
    return LlamaForCausalLM(LlamaConfig(**SHAPE))


def trained(directory: Path) -> LlamaForCausalLM:
    """The model in `directory`, in float32, ready to answer."""
    model = _untrained()
    model.load_state_dict(load_file(directory / WEIGHTS_FILE), strict=False)
    model.tie_weights()
    model.eval()  # type: ignore[no-untyped-call]
    return model


def write(model: LlamaForCausalLM, directory: Path) -> None:
    """Write the weights as float16, and both configuration files."""
    weights = {
        name: tensor.half().contiguous()
        for name, tensor in model.state_dict().items()
        if name != "lm_head.weight"
    }
    save_file(weights, directory / WEIGHTS_FILE, metadata={"format": "pt"})
    for name, content in (("config.json", SHAPE), ("generation_config.json", GENERATION)):
        (directory / name).write_text(json.dumps(content, indent=2) + "\n", "utf-8")


def optimizers(model: LlamaForCausalLM) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers, AdamW for the embedding and the norms."""
    matrices = [weight for weight in model.model.layers.parameters() if weight.ndim == 2]
    taken = {id(weight) for weight in matrices}
    others = [weight for weight in model.parameters() if id(weight) not in taken]
    return [
        torch.optim.Muon(matrices, lr=MATRIX_RATE, momentum=0.95, weight_decay=0.01, adjust_lr_fn="original"),
        torch.optim.AdamW(others, lr=OTHER_RATE, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def pooled(model: LlamaForCausalLM, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Embeddings [n, width]: the mean of the last hidden states over the tokens that `mask` [n, length] has.

    Unit length. `ids` are padded on the right, so that the causal mask alone keeps padding out.
    """
    hidden = model.model(input_ids=ids).last_hidden_state
    return nn.functional.normalize(embedding.pooled(hidden, mask, "mean"), dim=-1)


class Agreement(NamedTuple):
    """exact: every token is the model's first choice; margin: the least lead over its second, in logits."""

    exact: bool
    margin: float


@torch.no_grad()
def argmax_agrees(model: LlamaForCausalLM, prompt: Sequence[int], answer: Sequence[int]) -> Agreement:
    """Whether greedy decoding after `prompt` gives `answer`, found in one pass over both."""
    ids = torch.tensor([[*prompt, *answer]])
    logits = model(input_ids=ids[:, :-1]).logits[0, len(prompt) - 1 :]
    best = logits.topk(2, dim=-1)
    exact = bool((best.indices[:, 0] == torch.tensor(list(answer))).all())
    return Agreement(exact, float((best.values[:, 0] - best.values[:, 1]).min()))


@torch.no_grad()
def answer_all(
    model: LlamaForCausalLM, prompts: Sequence[Sequence[int]], end: int, batch: int = BATCH
) -> list[list[int]]:
    """The greedy answer to each prompt, without the end token, computed `batch` prompts at a time."""
    answers: dict[int, list[int]] = {}
    order = sorted(range(len(prompts)), key=lambda place: len(prompts[place]))
    for start in range(0, len(order), batch):
        places = order[start : start + batch]
        for place, answer in zip(
            places, _answer(model, [prompts[place] for place in places], end), strict=True
        ):
            answers[place] = answer
    return [answers[place] for place in range(len(prompts))]


def _answer(model: LlamaForCausalLM, prompts: Sequence[Sequence[int]], end: int) -> list[list[int]]:
    longest = max(len(prompt) for prompt in prompts)
    ids = torch.tensor([[*[0] * (longest - len(prompt)), *prompt] for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    made = model.generate(  # type: ignore[misc]
        input_ids=ids,
        attention_mask=mask,
        do_sample=False,
        max_new_tokens=LONGEST_TOKENS,
        eos_token_id=end,
        pad_token_id=0,
    )
    return [_until(row[longest:].tolist(), end) for row in made]


def _until(ids: list[int], end: int) -> list[int]:
    return ids[: ids.index(end)] if end in ids else ids
