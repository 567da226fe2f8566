"""Lets in who shows a token of an issuer that is trusted; a token seen before costs a look-up."""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from gateway.auth.oidc.claims import principal_of
from gateway.auth.oidc.source import KeySource
from gateway.auth.oidc.verify import KeyUnknown, TokenOutOfDate, TokenRefused, read, verify
from gateway.domain.errors import IssuerUnavailable, Unauthenticated
from gateway.domain.request import Principal

REMEMBERED = 10_000
"""Tokens whose verification is remembered, about 1 KB each."""


class _Seen(NamedTuple):
    principal: Principal
    until_s: float
    """Unix time: its end, and the skew."""
    source: KeySource
    generation: int
    """Of the keys it was verified with: once they are others it is verified again."""


class TokenAuthenticator:
    """Holders of tokens. Belongs to one thread.

    Tokens are remembered by their SHA-256, so what a caller can learn from timing is about digests.
    """

    def __init__(
        self, sources: Sequence[KeySource], wall: Callable[[], float], remembered: int = REMEMBERED
    ) -> None:
        """``wall`` gives Unix time."""
        self._sources: Mapping[str, KeySource] = {source.issuer.issuer: source for source in sources}
        self._wall = wall
        self._remembered = remembered
        self._seen: OrderedDict[bytes, _Seen] = OrderedDict()

    def __len__(self) -> int:
        """Tokens remembered."""
        return len(self._seen)

    def authenticate(self, text: str) -> Principal:
        """Who holds the token. Raises Unauthenticated, and IssuerUnavailable while the issuer's keys could
        not be had."""
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
        seen, now_s = self._seen.get(digest), self._wall()
        if seen is not None:
            if now_s < seen.until_s and seen.generation == seen.source.generation:
                self._seen.move_to_end(digest)
                return seen.principal
            del self._seen[digest]
        try:
            seen = self._verified(text, now_s)
        except TokenRefused as error:
            raise _unauthenticated(error) from None
        self._seen[digest] = seen
        if len(self._seen) > self._remembered:
            self._seen.popitem(last=False)
        return seen.principal

    def _verified(self, text: str, now_s: float) -> _Seen:
        """Raises TokenRefused and IssuerUnavailable."""
        token = read(text)
        source = self._sources.get(token.issuer)
        if source is None:
            raise TokenRefused("The token's issuer is not one that this gateway trusts.")
        if not source.ready:
            raise IssuerUnavailable("The keys of the token's issuer are not known yet; try again soon.")
        generation, issuer = source.generation, source.issuer
        try:
            verified = verify(token, issuer, source, now_s)
        except KeyUnknown:
            source.ask()
            raise
        principal = principal_of(verified, issuer)
        return _Seen(principal, verified.expires_s + issuer.skew_s, source, generation)


def _unauthenticated(error: TokenRefused) -> Unauthenticated:
    refusal = Unauthenticated(str(error), code=error.code)
    if isinstance(error, KeyUnknown):
        refusal.retry_after_s, refusal.should_retry = 1.0, True
    elif isinstance(error, TokenOutOfDate):
        refusal.should_retry = False
    return refusal
