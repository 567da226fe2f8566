"""Attention of a step's sequences apart from each other on a CPU, where together costs more.

The library computes the attention of all sequences of a step as one, with a mask that hides each from the
others: of n sequences of like length it computes n times as much as is needed. Where each sequence gets one
token, as it does while texts are generated, all are computed as one batch in which the shorter ones are
filled up; where their lengths differ too much for that, neighbours of one length are a batch.
"""

from collections.abc import Iterator
from itertools import groupby, pairwise
from typing import Any, NamedTuple

import torch
from transformers.generation.continuous_batching.cache import PagedAttentionCache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from agent.engines.torch.decoding import FILL_SHARE, KEYWORD, Workspace

_CALL_PAIRS = 512
"""A call for one more sequence takes about as long as so many pairs of tokens that need not be computed."""

_WHOLE = "full_attention"
"""The type of layers that see whole sequences (transformers' ``layer_type``)."""
_STEP = "_trunkline_decoding"
"""The cache's attribute with the step's :class:`_Decoding`."""
_sdpa = sdpa_attention_forward


class _Part(NamedTuple):
    """Neighbouring sequences of a step: where their tokens are, and those that they look back to. With
    ``sequences`` above 1 each has one token, and all have as many to look back to."""

    start: int
    to: int
    key_start: int
    key_to: int
    sequences: int


class _Decoding(NamedTuple):
    """A step in which each of n sequences gets one token. All layers that see whole sequences share it."""

    read_index: list[torch.Tensor]
    """The step's own, by which it is known."""
    padded_index: list[torch.Tensor] | None
    """Where in the cache the tokens are, for those layers of shape (n × longest,): shorter sequences are
    filled up with their first token. None where that would be too much."""
    longest: int
    mask: torch.Tensor | None
    """Shape (n, 1, 1, longest); None where all are of one length."""


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
    if (workspace := kwargs.pop(KEYWORD, None)) is not None:
        return _side_by_side(module, query, key, value, workspace, kwargs), None
    if query.device.type != "cpu" or attention_mask is None or kwargs.get("position_bias") is not None:
        return together(cache=cache)
    if (found := _decoded(module, query, key, value, cache, kwargs)) is not None:
        return found, None
    if kwargs["cu_seq_lens_q"].numel() <= 2:
        return together(cache=cache)
    key, value = cache.update(key, value, module.layer_idx, kwargs)
    queries, keys = kwargs["cu_seq_lens_q"].tolist(), kwargs["cu_seq_lens_k"].tolist()
    places = list(zip(queries, queries[1:], keys, keys[1:], strict=False))
    needed = sum((to - start) * (key_to - key_start) for start, to, key_start, key_to in places)
    parts = list(_parts(places))
    if query.size(2) * key.size(2) - needed < _CALL_PAIRS * len(parts):
        return together()
    parted = [
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
    return torch.cat(parted, dim=1), None


def _side_by_side(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    workspace: Workspace,
    kwargs: dict[str, Any],
) -> torch.Tensor:
    """The attention, of shape (1, sequences, heads, width), where each sequence gets one token."""
    if kwargs.get("position_bias") is not None:
        raise NotImplementedError("a bias of positions, which is for all tokens of all sequences")
    keys, values = workspace.update(module.layer_idx, key, value)
    return _sdpa(module, query.transpose(0, 2), keys, values, workspace.mask, **kwargs)[0].transpose(0, 1)


def _decoded(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cache: PagedAttentionCache,
    kwargs: dict[str, Any],
) -> torch.Tensor | None:
    """The attention, of shape (1, sequences, heads, width), where each sequence gets one token and this layer
    sees whole sequences; else None, and nothing was done."""
    count, allocator = query.size(2), cache.layer_to_allocator[module.layer_idx]
    if kwargs["cu_seq_lens_q"].numel() != count + 1 or allocator.layer_type != _WHOLE:
        return None
    if kwargs.get("block_table") is not None or not kwargs["read_index"][allocator.index].numel():
        return None
    step: _Decoding | None = getattr(cache, _STEP, None)
    if step is None or step.read_index is not kwargs["read_index"]:
        step = _decoding(kwargs["cu_seq_lens_k"][_WHOLE].tolist(), kwargs["read_index"], query.dtype)
        setattr(cache, _STEP, step)
    if step.padded_index is None:
        return None
    own = kwargs | {"read_index": step.padded_index}
    keys, values = (
        each.squeeze(0).transpose(0, 1).view(count, step.longest, each.size(1), each.size(3)).transpose(1, 2)
        for each in cache.update(key, value, module.layer_idx, own)
    )
    alone = query.squeeze(0).transpose(0, 1).unsqueeze(2)
    return _sdpa(module, alone, keys, values, step.mask, **own)[0].transpose(0, 1)


def _decoding(bounds: list[int], read_index: list[torch.Tensor], dtype: torch.dtype) -> _Decoding:
    """``bounds``: where the sequences begin and end among the tokens that are read."""
    lengths = [to - start for start, to in pairwise(bounds)]
    longest, total = max(lengths), bounds[-1]
    if longest * len(lengths) - total > FILL_SHARE * total:
        return _Decoding(read_index, None, longest, None)
    if min(lengths) == longest:
        return _Decoding(read_index, read_index, longest, None)
    place, length = torch.arange(longest), torch.tensor(lengths).unsqueeze(1)
    filled = place >= length
    where = (torch.tensor(bounds[:-1]).unsqueeze(1) + torch.where(filled, 0, place)).flatten()
    mask = torch.zeros(filled.shape, dtype=dtype).masked_fill_(filled, torch.finfo(dtype).min)
    padded = [each[where] if each.numel() == total else each for each in read_index]
    return _Decoding(read_index, padded, longest, mask[:, None, None, :])


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
