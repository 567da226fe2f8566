"""Ends of texts that are held to a grammar: how many tokens one takes at least.

A text that must be JSON is worth nothing when its limit of tokens cuts it. So near its limit it is led to its
end: what would leave too few tokens to end in is not taken any more.
"""

from collections.abc import Sequence
from typing import Protocol, Self

import numpy
import torch

from agent.engines.torch.json_position import JSONPosition, TokenStarts

ZONE_TOKENS = 128
"""So near its limit a text is looked after. The ends of most schemas take a tenth of it."""

SLACK_TOKENS = 48
"""While it has so many tokens more than its end takes, it is as free as ever."""

TRIED = 4
"""Of the likeliest tokens so many are tried."""

_CLOSERS = frozenset('"]}')


class Matcher(Protocol):
    """What is used of ``llguidance.LLMatcher``. It raises nothing: errors are a state of it."""

    def deep_copy(self) -> Self: ...
    def validate_tokens(self, tokens: list[int]) -> int: ...
    def consume_tokens(self, tokens: list[int]) -> bool: ...
    def compute_bitmask(self) -> bytes: ...
    def is_error(self) -> bool: ...
    def get_error(self) -> str: ...


def tokens_allowed(matcher: Matcher, vocabulary: int) -> torch.Tensor:
    """Which tokens may come next: booleans of shape (vocabulary,). Raises ValueError if that cannot be
    computed."""
    bits = numpy.frombuffer(matcher.compute_bitmask(), dtype=numpy.uint8)
    if matcher.is_error():
        raise ValueError(matcher.get_error())
    allowed = torch.from_numpy(numpy.unpackbits(bits, bitorder="little").view(numpy.bool_))
    if allowed.size(0) < vocabulary:  # logits of no token, up to a round number
        allowed = torch.nn.functional.pad(allowed, (0, vocabulary - allowed.size(0)))
    return allowed[:vocabulary]


class TextEnding:
    """A short end of one text, from where it is. It need not be the shortest: a search for that would take
    longer than the text."""

    def __init__(self, starts: TokenStarts, end_ids: Sequence[int]) -> None:
        self._starts = starts
        self._end_ids = list(end_ids)
        self._known: list[int] | None = None
        """The tokens, with one that ends the text."""
        self._is_known = False

    def copy(self) -> "TextEnding":
        """For another text, from where this one is."""
        ending = TextEnding(self._starts, self._end_ids)
        ending._known, ending._is_known = self._known, self._is_known
        return ending

    def follow(self, tokens: Sequence[int], position: JSONPosition) -> None:
        """The text has gone on with ``tokens``; ``position`` is before them."""
        for token in tokens:
            if self._known and self._known[0] == token:
                self._known = self._known[1:]
            elif not self._stays(token, position):
                self._is_known = False

    def within(
        self,
        matcher: Matcher,
        position: JSONPosition,
        allowed: torch.Tensor,
        scores: torch.Tensor,
        left: int,
    ) -> torch.Tensor:
        """Those of ``allowed`` after which the text can still end in what is left of ``left`` tokens, as far
        as the likeliest by ``scores`` are concerned. All, if it has enough, or could not end in them."""
        if self._known and not bool(allowed[self._known[0]]):
            self._is_known = False
        ending = self._now(matcher, position)
        if ending is None or not 0 < len(ending) <= left:
            return allowed
        if left >= len(ending) + SLACK_TOKENS:
            return allowed
        fitting = torch.zeros_like(allowed)
        fitting[ending[0]] = True
        if left == len(ending):
            return fitting
        ranked = scores.masked_fill(~allowed.to(scores.device), -torch.inf)
        for token in ranked.topk(min(TRIED, ranked.size(-1))).indices.tolist():
            if bool(allowed[token]) and self._fits(matcher, position, token, left - 1):
                fitting[token] = True
        return fitting

    def _stays(self, token: int, position: JSONPosition) -> bool:
        """Whether the end that is known is one after ``token``, too: so it is in a string that may be any."""
        known = self._known
        closes = known is not None and bool(known) and bool(self._starts.quotes[known[0]])
        return closes and position.in_text and self._starts.is_plain(token)

    def _fits(self, matcher: Matcher, position: JSONPosition, token: int, left: int) -> bool:
        if token in self._end_ids:
            return True
        if self._stays(token, position):
            return self._known is not None and len(self._known) <= left
        after, place = matcher.deep_copy(), position.copy()
        if not after.consume_tokens([token]):
            return False
        place.follow([token])
        return self._search(after, place, left) is not None

    def _now(self, matcher: Matcher, position: JSONPosition) -> list[int] | None:
        if not self._is_known:
            self._known = self._search(matcher.deep_copy(), position.copy(), ZONE_TOKENS)
            self._is_known = True
        return self._known

    def _search(self, matcher: Matcher, position: JSONPosition, most: int) -> list[int] | None:
        """The tokens to an end, with the one that ends the text; None: there are more than ``most``, or none
        was found. Changes ``matcher`` and ``position``."""
        found: list[int] = []
        while len(found) < most:
            allowed = tokens_allowed(matcher, len(self._starts.tokens))
            end = next((token for token in self._end_ids if bool(allowed[token])), None)
            if end is not None:
                return [*found, end]
            token = self._next(allowed, position)
            if token is None or not matcher.consume_tokens([token]):
                return None
            position.follow([token])
            found.append(token)
        return None

    def _next(self, allowed: torch.Tensor, position: JSONPosition) -> int | None:
        """A token that brings the end nearer, mostly."""
        closing = position.closing(allowed)
        tokens = self._starts.tokens
        if closing is not None:
            ways = _places(closing)
            only = [way for way in ways if _CLOSERS.issuperset(tokens[way].decode("utf-8", "replace"))]
            return max(only, key=self._length) if only else min(ways, key=self._length)
        if not position.in_text:
            for kind in (self._starts.digits, self._starts.quotes):
                ways = _places(allowed & kind)
                if ways:
                    return min(ways, key=self._length)
        ways = _places(allowed)
        return max(ways, key=self._length) if ways else None  # of text that is demanded, as much as there is

    def _length(self, token: int) -> int:
        return len(self._starts.tokens[token])


def _places(tokens: torch.Tensor) -> list[int]:
    """Those that are true."""
    places: list[int] = tokens.nonzero().flatten().tolist()
    return places
