"""Attention of a step's sequences one by one on a CPU, where together costs more.

The library computes the attention of all sequences of a step as one, with a mask that hides each from the
others: of n sequences of like length it computes n times as much as is needed.
"""

from typing import Any

import torch
from transformers.generation.continuous_batching.cache import PagedAttentionCache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

_CALL_PAIRS = 512
"""A call for one more sequence takes about as long as so many pairs of tokens that need not be computed."""

_sdpa = sdpa_attention_forward


def install() -> None:
    """Let this process's models with the attention ``sdpa`` use it."""
    ALL_ATTENTION_FUNCTIONS["sdpa"] = attention_by_sequence


def attention_by_sequence(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    cache: Any = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """As the library's function of the attention ``sdpa``, whose result it gives.

    With a paged cache the tensors are (1, heads, tokens, width), the sequences' tokens one after the other.
    """

    def together(**paged: Any) -> tuple[torch.Tensor, None]:
        return _sdpa(module, query, key, value, attention_mask, **paged, **kwargs)

    if not isinstance(cache, PagedAttentionCache):
        return together(cache=cache)
    if query.device.type != "cpu" or attention_mask is None or kwargs.get("position_bias") is not None:
        return together(cache=cache)
    if kwargs["cu_seq_lens_q"].numel() <= 2:
        return together(cache=cache)
    key, value = cache.update(key, value, module.layer_idx, kwargs)
    queries, keys = kwargs["cu_seq_lens_q"].tolist(), kwargs["cu_seq_lens_k"].tolist()
    places = list(zip(queries, queries[1:], keys, keys[1:], strict=False))
    needed = sum((to - start) * (key_to - key_start) for start, to, key_start, key_to in places)
    if query.size(2) * key.size(2) - needed < _CALL_PAIRS * len(places):
        return together()
    found = [
        _sdpa(
            module,
            query[:, :, start:to],
            key[:, :, key_start:key_to],
            value[:, :, key_start:key_to],
            attention_mask[..., start:to, key_start:key_to],
            **kwargs,
        )[0]
        for start, to, key_start, key_to in places
    ]
    return torch.cat(found, dim=1), None
