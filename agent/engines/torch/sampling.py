"""Sampling settings for each request, inside transformers' continuous batching.

The manager chooses tokens by one rule for all requests: argmax, or a draw from one global generator. So it is
left at argmax, and for the requests that want sampling the logits are changed beforehand such that the token
drawn for them *is* the argmax. The draw is by inverse distribution function from one uniform number, which
depends on the request's seed and the token's position and on nothing else: the same seed gives the same text
in any batch, and a text continued elsewhere goes on with the same draws.

What changes logits comes in the order of transformers' own processors: bias, penalties, grammar, temperature,
``top_k``, ``top_p``, ``min_p``.
"""

import hashlib
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, Self

import torch
from transformers.generation.continuous_batching.requests import FutureRequestState, RequestState

from agent.engines.torch.logprobs import TokenLogprob
from agent.engines.torch.parsing import Sampling

KEYWORD = "sampling"
"""Under which a request's :class:`TextSampling` travels through the manager."""


def uniform(seed: int, position: int) -> float:
    """The random number in [0, 1) that decides the token at ``position`` of its sequence."""
    digest = hashlib.blake2b(struct.pack("<qq", seed, position), digest_size=8).digest()
    return float((int.from_bytes(digest, "little") >> 11) / 2**53)


class Guide(Protocol):
    """Holds a text to a grammar."""

    @property
    def end_ids(self) -> Sequence[int]:
        """The tokens that end a text."""

    def follow(self, tokens: Sequence[int]) -> None:
        """The text goes on with these tokens."""

    def allowed(self, vocabulary: int) -> torch.Tensor:
        """Which tokens may come next: booleans of shape (vocabulary,), on the CPU. Raises ValueError if that
        cannot be computed."""

    def within(self, allowed: torch.Tensor, scores: torch.Tensor, left: int) -> torch.Tensor:
        """Those of ``allowed`` after which the text can still end in what is left of ``left`` tokens.
        ``scores``, of shape (vocabulary,), say which are likely. Raises ValueError as :meth:`allowed`."""

    def closing(self, allowed: torch.Tensor) -> torch.Tensor | None:
        """Those of ``allowed`` that bring the end nearer. None: there are none, or the text may end now."""


class TextSampling:
    """How the tokens of one text are chosen, and what that depends on: the text so far.

    Belongs to the computing thread. The event loop reads ``logprobs``, which has an entry for each token that
    was delivered, and ``error`` after a delivery. ``begun``: how many tokens at the prompt's end are the
    answer's beginning; penalties and the grammar count them as the answer's.
    """

    def __init__(
        self,
        sampling: Sampling,
        *,
        begun: int = 0,
        guide: Guide | None = None,
        most_tokens: int | None = None,
        whole: bool = False,
    ) -> None:
        """``most_tokens``: that it may get; None: no limit is known. ``whole``: between its first token and
        its last nobody wants to know of it."""
        self.sampling = sampling
        self.whole = whole
        self.logprobs: list[TokenLogprob] = []
        self.error: str | None = None
        """Why the text cannot go on."""
        self.follows = sampling.penalises or guide is not None
        """The choice depends on the text so far."""
        self._begun = begun
        self._guide = guide
        self._left = most_tokens
        """Tokens that it may still get."""
        self._most_tokens = most_tokens
        self._known = -1
        """How many tokens of the sequence were taken in; -1: none yet, nor the prompt."""
        self._news: list[int] = []
        self._prompt: list[int] = []
        self._in_prompt: torch.Tensor | None = None
        self._counts: torch.Tensor | None = None
        """How often each token is in the answer."""

    def __deepcopy__(self, memo: Any) -> Self:
        """The manager copies what comes with a request when it begins it anew; the text remains the same."""
        return self

    @property
    def adjusts(self) -> bool:
        """It changes logits, apart from the draw."""
        return self.follows or bool(self.sampling.logit_bias)

    def follow(self, state: RequestState) -> None:
        """Take in the tokens that were added since the last call."""
        prompt_tokens = state._true_initial_tokens or len(state.initial_tokens)
        rest = len(state.initial_tokens) - prompt_tokens
        del self.logprobs[rest + len(state.generated_tokens) :]  # of a step that failed and is repeated
        if not self.follows:
            return
        if self._known < 0:
            self._prompt = state.initial_tokens[:prompt_tokens]
            self._known = prompt_tokens - self._begun
        news = state.initial_tokens[self._known :]
        news += state.generated_tokens[max(0, self._known - len(state.initial_tokens)) :]
        self._known += len(news)
        self._news += news
        if self._most_tokens is not None:
            self._left = self._most_tokens - (self._known - prompt_tokens)

    def adjust(self, scores: torch.Tensor) -> None:
        """Change ``scores``, of shape (vocabulary,), in place."""
        sampling, news = self.sampling, self._news
        self._news = []
        if sampling.logit_bias:
            tokens, values = zip(*sampling.logit_bias, strict=True)
            scores[list(tokens)] += torch.tensor(values, device=scores.device, dtype=scores.dtype)
        if sampling.penalises:
            self._penalise(scores, news)
        if self._guide is not None and self.error is None:
            try:
                self._guide.follow(news)
                allowed = self._guide.allowed(scores.size(-1))
                if self._left is not None:
                    allowed = self._guide.within(allowed, scores, self._left)
            except ValueError as error:
                self.error = str(error)
            else:
                _hold(scores, self._guide, allowed)

    def _penalise(self, scores: torch.Tensor, news: list[int]) -> None:
        if self._counts is None or self._in_prompt is None:
            self._counts = torch.zeros_like(scores)
            self._in_prompt = torch.zeros_like(scores, dtype=torch.bool)
            self._in_prompt[torch.tensor(self._prompt, device=scores.device)] = True
            self._prompt = []
        if news:
            where = torch.tensor(news, device=scores.device)
            self._counts.index_add_(0, where, torch.ones_like(where, dtype=scores.dtype))
        said = self._counts > 0
        factor = self.sampling.repetition_penalty
        if factor != 1.0:
            repeated = torch.where(scores < 0, scores * factor, scores / factor)
            torch.where(said | self._in_prompt, repeated, scores, out=scores)
        scores -= self.sampling.frequency_penalty * self._counts
        scores -= self.sampling.presence_penalty * said


def _hold(scores: torch.Tensor, guide: Guide, allowed: torch.Tensor) -> None:
    """Leave only the tokens that are allowed.

    If the end is not, its probability goes to the likeliest token that brings it nearer. A model that wants
    to end within a string would otherwise go on with whatever it likes next best, and small ones never come
    back to an end.
    """
    closing = guide.closing(allowed)
    end = None if closing is None else scores[list(guide.end_ids)].logsumexp(0)
    scores.masked_fill_(~allowed.to(scores.device), -torch.inf)
    if closing is not None and end is not None:
        nearest = scores.masked_fill(~closing.to(scores.device), -torch.inf).argmax()
        scores[nearest] = torch.logaddexp(scores[nearest], end)


class _Draw(NamedTuple):
    row: int
    sampling: Sampling
    uniform: float

    @property
    def truncated(self) -> bool:
        return self.sampling.top_p < 1.0 or self.sampling.top_k > 0 or self.sampling.min_p > 0.0


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
        self._adjusting: list[tuple[int, TextSampling]] = []
        self._reporting: list[tuple[int, TextSampling]] = []

    def fill_defaults(self, tensor: torch.Tensor) -> None:
        """Nothing to fill: no tensors are required."""

    def check_kwargs(self, kwargs: dict[str, Any]) -> None:
        if not isinstance(kwargs.get(KEYWORD), TextSampling):
            raise TypeError("a request without sampling")

    def prepare_tensor_args(
        self, requests_in_batch: list[FutureRequestState], arg_storage: torch.Tensor
    ) -> torch.Tensor:
        """Note what is to be done in the step being prepared; rows count the requests that get a token."""
        self._draws, self._adjusting, self._reporting = [], [], []
        states = [request.state for request in requests_in_batch if request.has_new_token]
        for row, state in enumerate(states):
            text: TextSampling = state.logit_processor_kwargs[KEYWORD]
            wanted = text.sampling
            if wanted.temperature > 0:
                draw = uniform(wanted.seed or 0, state.position_offset)
                self._draws.append(_Draw(row, wanted, draw))
            if text.adjusts:
                self._adjusting.append((row, text))
            if wanted.top_logprobs is not None:
                self._reporting.append((row, text))
            if text.follows or wanted.top_logprobs is not None:
                text.follow(state)
        return arg_storage

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, args: torch.Tensor) -> torch.Tensor:
        """Scores of shape (rows, vocabulary); those of drawn tokens become infinite."""
        given = scores
        if self._draws or self._adjusting:
            scores = scores.clone()
        for row, text in self._adjusting:
            text.adjust(scores[row])
        for truncated in (False, True):
            draws = [draw for draw in self._draws if draw.truncated == truncated]
            if draws:
                rows = torch.tensor([draw.row for draw in draws], device=scores.device)
                chosen = _drawn(scores[rows], draws, truncated)
                scores[rows, chosen] = torch.inf
        if self._reporting:
            _report(self._reporting, given, scores)
        return scores


def _report(texts: Sequence[tuple[int, TextSampling]], given: torch.Tensor, scores: torch.Tensor) -> None:
    """Note the log probabilities in each text's row of ``given``; ``scores`` decide what is chosen."""
    rows = torch.tensor([row for row, _ in texts], device=given.device)
    logprobs = torch.log_softmax(given[rows].float(), dim=-1)
    chosen = scores[rows].argmax(dim=-1, keepdim=True)
    most = max(text.sampling.top_logprobs or 0 for _, text in texts)
    found = top_logprobs(logprobs, chosen, most)
    for (_, text), entry in zip(texts, found, strict=True):
        text.logprobs.append(entry._replace(top=entry.top[: text.sampling.top_logprobs]))


def top_logprobs(logprobs: torch.Tensor, chosen: torch.Tensor, most: int) -> list[TokenLogprob]:
    """An entry for each row of ``logprobs`` (rows, vocabulary); ``chosen`` has the tokens (rows, 1)."""
    own = logprobs.gather(-1, chosen).squeeze(-1).tolist()
    values, tokens = logprobs.topk(min(most, logprobs.size(-1)), dim=-1)
    return [
        TokenLogprob(token, logprob, tuple(zip(*other, strict=True)))
        for token, logprob, *other in zip(
            chosen.squeeze(-1).tolist(), own, tokens.tolist(), values.tolist(), strict=True
        )
    ]


def _drawn(scores: torch.Tensor, draws: list[_Draw], truncated: bool) -> torch.Tensor:
    """The token drawn in each row of ``scores``; shape (rows,)."""

    def column(values: list[float]) -> torch.Tensor:
        return torch.tensor(values, device=scores.device, dtype=torch.float32).unsqueeze(-1)

    weights = torch.softmax(scores / column([draw.sampling.temperature for draw in draws]), dim=-1)
    order = None
    if truncated:
        weights, order = torch.sort(weights, dim=-1, descending=True, stable=True)
        rank = torch.arange(weights.size(-1), device=scores.device).expand_as(weights)
        outside = rank >= column([draw.sampling.top_k or weights.size(-1) for draw in draws])
        weights = weights.masked_fill(outside, 0.0)
        sums = weights.cumsum(dim=-1)
        outside = sums - weights >= column([draw.sampling.top_p for draw in draws]) * sums[:, -1:]
        outside |= weights < column([draw.sampling.min_p for draw in draws]) * weights[:, :1]
        outside[:, 0] = False
        weights = weights.masked_fill(outside, 0.0)
    sums = weights.cumsum(dim=-1)
    total = sums[:, -1:]
    wanted = column([draw.uniform for draw in draws]) * total
    # Rounding may make it the total, beyond which there are only tokens that are left out.
    wanted = torch.minimum(wanted, torch.nextafter(total, torch.zeros_like(total)))
    chosen = torch.searchsorted(sums, wanted, right=True)
    if order is not None:
        chosen = order.gather(-1, chosen)
    return chosen.squeeze(-1)
