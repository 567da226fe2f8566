"""Attention of a step's sequences apart from each other on a CPU, where together costs more.

The library computes the attention of all sequences of a step as one, with a mask that hides each from the
others: of n sequences of like length it computes n times as much as is needed. Neighbours that get one token
each and are of one length are computed as a batch, which takes one call instead of many.
"""

from collections.abc import Iterator
from itertools import groupby
from typing import Any, NamedTuple

import torch
from transformers.generation.continuous_batching.cache import PagedAttentionCache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

_CALL_PAIRS = 512
"""A call for one more sequence takes about as long as so many pairs of tokens that need not be computed."""

_sdpa = sdpa_attention_forward


class _Part(NamedTuple):
    """Neighbouring sequences of a step: where their tokens are, and those that they look back to. With
    ``sequences`` above 1 each has one token, and all have as many to look back to."""

    start: int
    to: int
    key_start: int
    key_to: int
    sequences: int


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
    parts = list(_parts(places))
    if query.size(2) * key.size(2) - needed < _CALL_PAIRS * len(parts):
        return together()
    found = [
        _batch(module, query, key, value, attention_mask, part, kwargs)
        if part.sequences > 1
        else _sdpa(
            module,
            query[:, :, part.start : part.to],
            key[:, :, part.key_start : part.key_to],
            value[:, :, part.key_start : part.key_to],
            attention_mask[..., part.start : part.to, part.key_start : part.key_to],
            **kwargs,
        )[0]
        for part in parts
    ]
    return torch.cat(found, dim=1), None


def _parts(places: list[tuple[int, int, int, int]]) -> Iterator[_Part]:
    """The sequences at ``places``, those together that can be a batch."""

    def length(place: tuple[int, int, int, int]) -> int:
        start, to, key_start, key_to = place
        return key_to - key_start if to - start == 1 else -start - 1  # another one for each

    for _, alike in groupby(places, length):
        some = list(alike)
        yield _Part(some[0][0], some[-1][1], some[0][2], some[-1][3], len(some))


def _batch(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    part: _Part,
    kwargs: dict[str, Any],
) -> torch.Tensor:
    """The attention of the sequences of ``part``, of shape (1, sequences, heads, width)."""
    count = part.sequences
    own = query[0, :, part.start : part.to].transpose(0, 1).unsqueeze(2)
    keys, values = (
        each[0, :, part.key_start : part.key_to]
        .reshape(each.size(1), count, -1, each.size(3))
        .transpose(0, 1)
        for each in (key, value)
    )
    mask = attention_mask[0, :, part.start : part.to, part.key_start : part.key_to]
    mask = mask.reshape(mask.size(0), count, count, -1).diagonal(dim1=1, dim2=2).permute(2, 0, 1).unsqueeze(2)
    return _sdpa(module, own, keys, values, mask, **kwargs)[0].transpose(0, 1)
