"""Greedy answers, and a quick proof that a text is one."""

from collections.abc import Sequence
from typing import Final, NamedTuple

import torch
from transformers import LlamaForCausalLM

BATCH: Final = 16
LONGEST_TOKENS: Final = 512


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
