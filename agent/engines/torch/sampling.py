"""Sampling settings for each request, inside transformers' continuous batching.

The manager chooses tokens by one rule for all requests: argmax, or a draw from one global generator. So it is
left at argmax, and for the requests that want sampling the logits are changed beforehand such that the token
drawn for them *is* the argmax. The draw is by inverse distribution function from one uniform number, which
depends on the request's seed and the token's position and on nothing else: the same seed gives the same text
in any batch, and a text continued elsewhere goes on with the same draws.
"""

import hashlib
import struct
from typing import Any, NamedTuple

import torch
from transformers.generation.continuous_batching.requests import FutureRequestState

from agent.engines.torch.parsing import Sampling

KEYWORD = "sampling"
"""Under which a request's :class:`Sampling` travels through the manager."""


def uniform(seed: int, position: int) -> float:
    """The random number in [0, 1) that decides the token at ``position`` of its sequence."""
    digest = hashlib.blake2b(struct.pack("<qq", seed, position), digest_size=8).digest()
    return float((int.from_bytes(digest, "little") >> 11) / 2**53)


class _Draw(NamedTuple):
    row: int
    sampling: Sampling
    uniform: float

    @property
    def truncated(self) -> bool:
        return self.sampling.top_p < 1.0 or self.sampling.top_k > 0


class PerRequestSampling:
    """Takes the place of the manager's list of logits processors, with the methods that the manager calls.

    It keeps what the step being prepared needs in Python, not in tensors: it is not for CUDA graphs or
    asynchronous batching, which replay or overlap steps (see `batching`).
    """

    tensors_required = 0
    do_processing = True
    logits_processor: tuple[()] = ()

    def __init__(self) -> None:
        self._draws: list[_Draw] = []

    def fill_defaults(self, tensor: torch.Tensor) -> None:
        """Nothing to fill: no tensors are required."""

    def check_kwargs(self, kwargs: dict[str, Any]) -> None:
        if not isinstance(kwargs.get(KEYWORD), Sampling):
            raise TypeError("a request without sampling")

    def prepare_tensor_args(
        self, requests_in_batch: list[FutureRequestState], arg_storage: torch.Tensor
    ) -> torch.Tensor:
        """Note what is to be drawn in the step being prepared; rows count the requests that get a token."""
        self._draws = []
        states = [request.state for request in requests_in_batch if request.has_new_token]
        for row, state in enumerate(states):
            wanted: Sampling = state.logit_processor_kwargs[KEYWORD]
            if wanted.temperature > 0:
                draw = uniform(wanted.seed or 0, state.position_offset)
                self._draws.append(_Draw(row, wanted, draw))
        return arg_storage

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, args: torch.Tensor) -> torch.Tensor:
        """Scores of shape (rows, vocabulary); those of drawn tokens become infinite."""
        if not self._draws:
            return scores
        scores = scores.clone()
        for truncated in (False, True):
            draws = [draw for draw in self._draws if draw.truncated == truncated]
            if draws:
                rows = torch.tensor([draw.row for draw in draws], device=scores.device)
                chosen = _drawn(scores[rows], draws, truncated)
                scores[rows, chosen] = torch.inf
        return scores


def _drawn(scores: torch.Tensor, draws: list[_Draw], truncated: bool) -> torch.Tensor:
    """The token drawn in each row of ``scores``; shape (rows,)."""

    def column(values: list[float]) -> torch.Tensor:
        return torch.tensor(values, device=scores.device, dtype=torch.float32).unsqueeze(-1)

    weights = torch.softmax(scores / column([draw.sampling.temperature for draw in draws]), dim=-1)
    order = None
    if truncated:
        weights, order = torch.sort(weights, dim=-1, descending=True, stable=True)
        before = weights.cumsum(dim=-1) - weights
        rank = torch.arange(weights.size(-1), device=scores.device).expand_as(weights)
        outside = before >= column([draw.sampling.top_p for draw in draws])
        outside |= rank >= column([draw.sampling.top_k or weights.size(-1) for draw in draws])
        outside[:, 0] = False
        weights = weights.masked_fill(outside, 0.0)
    sums = weights.cumsum(dim=-1)
    wanted = column([draw.uniform for draw in draws]) * sums[:, -1:]
    chosen = torch.searchsorted(sums, wanted, right=True).clamp_(max=weights.size(-1) - 1)
    if order is not None:
        chosen = order.gather(-1, chosen)
    return chosen.squeeze(-1)
