"""Classifiers, and cross-encoders, which are classifiers of pairs with one class."""

import inspect
from collections.abc import Sequence
from typing import Any

import torch

from agent.engines.torch.embedding import CPU_BATCH_TOKENS, CUDA_BATCH_TOKENS, Embedder, Vector
from agent.engines.torch.models import LoadedModel


class TokenPair(list[int]):
    """The tokens of two texts together. ``second`` is where the second begins for the model."""

    def __init__(self, ids: Sequence[int], second: int) -> None:
        super().__init__(ids)
        self.second = second


def pair_tokens(tokenizer: Any, first: str, second: str) -> TokenPair:
    """Two texts as the tokenizer joins them for the model."""
    encoded = tokenizer(first, second)
    ids = encoded.input_ids
    types = encoded.get("token_type_ids") or []
    return TokenPair(ids, types.index(1) if 1 in types else len(ids))


def classifier(model: LoadedModel) -> Embedder:
    """Gives the probabilities of the model's classes: of one class, or of several that may all apply, each by
    itself; else they add up to 1."""
    config = model.network.config
    apart = len(model.labels) == 1 or config.problem_type == "multi_label_classification"
    pad = model.tokenizer.pad_token_id or 0
    if config.pad_token_id is None:
        config.pad_token_id = pad  # by which decoders know where a text ends
    typed = "token_type_ids" in inspect.signature(model.network.forward).parameters

    @torch.inference_mode()
    def compute(batch: Sequence[Sequence[int]]) -> list[Vector]:
        longest = max(len(ids) for ids in batch)
        ids = torch.tensor([[*ids, *[pad] * (longest - len(ids))] for ids in batch], device=model.device)
        places = torch.arange(longest, device=model.device)

        def column(values: list[int]) -> torch.Tensor:
            return torch.tensor(values, device=model.device).unsqueeze(-1)

        mask = places < column([len(ids) for ids in batch])
        types = places >= column([getattr(ids, "second", len(ids)) for ids in batch])
        given = {"token_type_ids": (types & mask).long()} if typed else {}
        logits = model.network(input_ids=ids, attention_mask=mask.long(), **given).logits.float()
        found: list[Vector] = (logits.sigmoid() if apart else logits.softmax(dim=-1)).cpu().tolist()
        return found

    return Embedder(compute, CUDA_BATCH_TOKENS if model.device.type == "cuda" else CPU_BATCH_TOKENS)
