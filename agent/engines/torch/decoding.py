"""Steps in which each of the running texts gets one token, prepared and computed in a shorter way on a CPU.

Most steps are such. The library prepares each anew, as if it knew nothing of the one before: a mask for all
tokens of all texts, and the place of each of their tokens in the cache, by which every layer then copies all
keys and values. Here the keys and values of the texts stay side by side from one step to the next, in a
:class:`Workspace`, to which each step adds one token of each text. What was added goes into the cache at the
step's end, for all layers at once. So the cache is always whole: any other step, of whatever texts, is the
library's own.

Like `manager`, this knows the inside of transformers 5.23.
"""

import operator
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from transformers.generation.continuous_batching.cache_allocators import FullAttentionCacheAllocator
from transformers.generation.continuous_batching.requests import (
    TMP_TOKEN_ID,
    FutureRequestState,
    RequestState,
)

KEYWORD = "workspace"
"""Under which a step's :class:`Workspace` travels through the model to its attention."""

FILL_SHARE = 0.5
"""Shorter texts are filled up to the longest with so many tokens at most, as a share of their own."""

_GROWTH_TOKENS = 64
"""A workspace has room for so many tokens of each text beyond those it is made with, at most."""


class Workspace:
    """The keys and values of some texts in all layers, side by side; shorter ones are filled up at their end.

    It belongs to the computing thread, and to the texts that it was made for, as long as they go on together.
    """

    def __init__(self, states: Sequence[RequestState], allocator: FullAttentionCacheAllocator) -> None:
        """Reads what the cache has of these texts."""
        self._states = list(states)
        self._lengths = [state.position_offset for state in states]
        self._capacity = capacity(self._lengths)
        pages = pages_of(allocator)
        layers, kinds, page_tokens, heads, width = pages.shape[1:]
        texts = len(states)
        self._tensor = pages.new_zeros((layers, kinds, texts, heads, self._capacity, width))
        for place, (state, length) in enumerate(zip(states, self._lengths, strict=True)):
            blocks = allocator.block_table[state.request_id][: -(-length // page_tokens)]
            read = pages[torch.tensor(blocks)].permute(1, 2, 4, 0, 3, 5).flatten(3, 4)
            self._tensor[:, :, place, :, : read.size(3)] = read
        self._rows_of_layers = _by_layer(self._tensor.flatten(2, 4), allocator.layer_indices)
        lengths = torch.tensor(self._lengths)
        self.positions = (lengths - 1).unsqueeze(0)
        """Of the tokens that the step adds; shape (1, texts)."""
        beginnings = torch.arange(texts * heads).view(texts, heads) * self._capacity
        self._rows = (beginnings + lengths.unsqueeze(1) - 1).flatten()
        """Where the step's tokens are in a layer's keys, of shape (texts × heads × capacity, width)."""
        self._hidden: torch.Tensor | None = None
        if min(self._lengths) != max(self._lengths):
            hidden = torch.arange(self._capacity) >= lengths.unsqueeze(1)
            self._hidden = pages.new_zeros(hidden.shape).masked_fill_(hidden, torch.finfo(pages.dtype).min)
        self.mask: torch.Tensor | None = None
        """What the attention of the step adds, of shape (texts, 1, 1, longest); None: nothing."""
        self._views: dict[int, tuple[torch.Tensor, ...]] = {}

    def continues(self, states: Sequence[RequestState]) -> bool:
        """Whether these texts are its own, with the tokens that it knows, and it has room for one more."""
        return (
            len(states) == len(self._states)
            and all(map(operator.is_, states, self._states))
            and [state.position_offset for state in states] == self._lengths
            and max(self._lengths) < self._capacity
        )

    def advance(self) -> None:
        """The next step begins: it adds one token to each text."""
        self._lengths = [length + 1 for length in self._lengths]
        self.positions += 1
        self._rows += 1
        longest = max(self._lengths)
        self._views = _by_layer(self._tensor[..., :longest, :], self._rows_of_layers)
        if self._hidden is not None:
            self._hidden.scatter_(1, self.positions.transpose(0, 1), 0.0)
            self.mask = self._hidden[:, None, None, :longest]

    def update(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Add the step's keys and values, each of shape (1, heads, texts, width).

        Returns all keys and values of that layer, each of shape (texts, heads, longest, width).
        """
        keys, values = self._rows_of_layers[layer]
        keys.index_copy_(0, self._rows, key.transpose(0, 2).reshape(-1, key.size(3)))
        values.index_copy_(0, self._rows, value.transpose(0, 2).reshape(-1, value.size(3)))
        return self._views[layer]

    def write(self, pages: torch.Tensor, blocks: Sequence[int]) -> None:
        """Write what the step has added into ``pages``, for each text in that one of ``blocks``."""
        offsets = [(length - 1) % pages.size(3) for length in self._lengths]
        if len(blocks) == 1:
            (block,), (offset,), (length,) = blocks, offsets, self._lengths
            pages[block, :, :, offset] = self._tensor[:, :, 0, :, length - 1]
            return
        added = self._tensor[:, :, torch.arange(len(blocks)), :, self.positions[0]]
        pages[torch.tensor(blocks), :, :, torch.tensor(offsets)] = added


class Decoder:
    """Takes the place of three methods of the manager's buffers (transformers' ``ContinuousBatchingIOs``) for
    the steps described above."""

    def __init__(self, buffers: Any, most_tokens: int) -> None:
        """``most_tokens``: how many a workspace may have room for, all texts together."""
        (allocator,) = buffers.cache.cache_allocators.values()
        self._buffers = buffers
        self._allocator = allocator
        self._pages = pages_of(allocator)
        self._most_tokens = most_tokens
        self._workspace: Workspace | None = None
        self._step: dict[str, Any] | None = None
        """What the model gets in the step that is prepared; None: what the library prepared for it."""
        self._prepare = buffers.prepare_batch_tensors
        self._inputs = buffers.get_model_kwargs
        self._end = buffers.retrieve_device_outputs

    @staticmethod
    def suits(buffers: Any, attention: str) -> bool:
        """Whether it is for these buffers and for a model with this attention."""
        whole = [type(each) for each in buffers.cache.cache_allocators.values()] == [
            FullAttentionCacheAllocator
        ]
        return whole and attention == "sdpa" and buffers.device.type == "cpu"

    def install(self) -> None:
        """Begin to do so."""
        self._buffers.prepare_batch_tensors = self.prepare
        self._buffers.get_model_kwargs = self.inputs
        self._buffers.retrieve_device_outputs = self.end

    def prepare(
        self, requests_in_batch: list[FutureRequestState], logits_processors: Any, **sizes: Any
    ) -> None:
        """As the library's ``prepare_batch_tensors``."""
        self._step = None
        states = [request.state for request in requests_in_batch]
        if not self._takes(requests_in_batch):
            self._workspace = None
            self._prepare(requests_in_batch, logits_processors, **sizes)
            return
        workspace, self._workspace = self._workspace, None  # it stays away if anything fails
        if workspace is None or not workspace.continues(states):
            workspace = None  # its memory is there for the next one
            workspace = Workspace(states, self._allocator)
        buffers = self._buffers
        buffers.use_block_table = False
        buffers.num_q_tokens = buffers.num_request_in_batch = len(states)
        buffers.requests_in_batch = requests_in_batch
        ids = []
        for state in states:
            ids.append(state.tokens_to_process[0])
            state.tokens_to_process = [TMP_TOKEN_ID]
            state.position_offset += 1
        logits_processors.prepare_tensor_args(requests_in_batch=requests_in_batch, arg_storage=None)
        workspace.advance()
        self._workspace = workspace
        self._step = {
            "input_ids": torch.tensor([ids]),
            "position_ids": workspace.positions,
            "attention_mask": _UNUSED if workspace.mask is None else workspace.mask,
            "cache": buffers.cache,
            "logits_indices": slice(None),
            "logits_processor_args": None,
            "use_cache": False,
            "is_causal": False,
            KEYWORD: workspace,
        }

    def inputs(self, use_padding: bool = False) -> Any:
        """As the library's ``get_model_kwargs``."""
        return self._inputs(use_padding) if self._step is None else self._step

    def end(self) -> None:
        """As the library's ``retrieve_device_outputs``: the step was computed."""
        self._end()
        if self._step is None or self._workspace is None:
            return
        page_tokens, tables = self._allocator.tokens_per_page, self._allocator.block_table
        states = [request.state for request in self._buffers.requests_in_batch]
        blocks = [tables[state.request_id][(state.position_offset - 1) // page_tokens] for state in states]
        self._workspace.write(self._pages, blocks)

    def _takes(self, requests: Sequence[FutureRequestState]) -> bool:
        """Whether each gets one token, after others, and a workspace for them is no larger than allowed."""
        lengths = [request.state.position_offset for request in requests]
        if not all(request.has_new_token and request.query_length == 1 for request in requests):
            return False
        longest, total = max(lengths), sum(lengths)
        filled = longest * len(lengths) - total
        roomy = capacity(lengths) * len(lengths) <= self._most_tokens
        return min(lengths) > 0 and filled <= FILL_SHARE * total and roomy


_UNUSED = torch.zeros((1, 1, 1, 1))
"""A mask of four dimensions, which the library's functions for masks leave alone."""


def capacity(lengths: Sequence[int]) -> int:
    """Of a workspace for texts of these lengths, in tokens of each."""
    return (max(lengths) // _GROWTH_TOKENS + 1) * _GROWTH_TOKENS


def pages_of(allocator: FullAttentionCacheAllocator) -> torch.Tensor:
    """The cache, of shape (blocks, layers, 2, tokens, heads, width)."""
    layers, tokens = len(allocator.layer_indices), allocator.tokens_per_page
    return allocator.cache_tensor.view(
        -1, layers, 2, tokens, allocator.num_key_value_heads, allocator.head_dim
    )


def _by_layer(tensor: torch.Tensor, layers: Iterable[int]) -> dict[int, tuple[torch.Tensor, ...]]:
    """Keys and values of each of ``layers``, the first two dimensions of ``tensor``."""
    return {layer: both.unbind() for layer, both in zip(layers, tensor.unbind(), strict=True)}
