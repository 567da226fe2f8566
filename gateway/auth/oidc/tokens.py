"""Lets in who shows a token of an issuer that is trusted, and says who that is here and what he may do.

A token seen before costs a look-up.
"""

import hashlib
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from gateway.auth.oidc.keyset import KeySet
from gateway.auth.oidc.source import KeySource
from gateway.auth.oidc.verify import (
    KeyUnknown,
    TokenOutOfDate,
    TokenRefused,
    Verified,
    read_token,
    verify_token,
)
from gateway.domain.errors import IssuerUnavailable, Unauthenticated
from gateway.domain.oidc import OidcTable
from gateway.domain.request import Principal, Tier
from gateway.domain.scopes import AdminRole, limited, matches
from gateway.storage.errors import BadValue
from gateway.storage.rules import MODELS, NAME_CHARS, check_models, check_record_name

REMEMBERED = 10_000
"""Tokens whose verification is remembered, about 1 KB each."""


class _Seen(NamedTuple):
    principal: Principal
    until_s: float
    """Unix time: its end, and the skew."""
    source: KeySource
    keys: KeySet
    """That it was verified with: once the source has others it is verified again."""


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
            if now_s < seen.until_s and seen.keys is seen.source.keys:
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
        token = read_token(text)
        source = self._sources.get(token.issuer)
        if source is None:
            raise TokenRefused("The token's issuer is not one that this gateway trusts.")
        keys = source.keys
        if keys is None:
            raise IssuerUnavailable("The keys of the token's issuer are not known yet; try again soon.")
        issuer = source.issuer
        try:
            verified = verify_token(token, issuer, keys, now_s)
        except KeyUnknown:
            source.key_unknown.set()
            raise
        principal = principal_of(verified, issuer)
        return _Seen(principal, verified.expires_s + issuer.skew_s, source, keys)


def _unauthenticated(error: TokenRefused) -> Unauthenticated:
    refusal = Unauthenticated(str(error), code=error.code)
    if isinstance(error, KeyUnknown):
        refusal.retry_after_s, refusal.should_retry = 1.0, True
    elif isinstance(error, TokenOutOfDate):
        refusal.should_retry = False
    return refusal


VALUES = 256
"""Most values of one claim that are looked at."""

_BLANKS = re.compile(r"[ ,]+")


def principal_of(token: Verified, issuer: OidcTable) -> Principal:
    """The holder of ``token``. Raises TokenRefused when it names a tenant that it may not, or none."""
    whose = hashlib.sha256(f"{issuer.issuer}\0{token.subject}".encode()).hexdigest()[:16]
    models, tiers = _models(token.claims, issuer), _tiers(token.claims, issuer)
    return Principal(
        f"jwt_{whose}",
        token.subject if len(token.subject) <= NAME_CHARS else f"jwt_{whose}",
        _tenant(token.claims, issuer),
        scopes=limited(models, None, tiers),
        role=_role(token.claims, issuer),
        lasting=False,
    )


def claim(claims: Mapping[str, Any], name: str) -> object:
    """The claim ``name``; where there is none, the one that its dots lead to (``realm_access.roles``)."""
    if name in claims:
        return claims[name]
    value: object = claims
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _tenant(claims: Mapping[str, Any], issuer: OidcTable) -> str:
    if issuer.tenant_claim is None:
        return issuer.tenant
    tenant = claim(claims, issuer.tenant_claim)
    if not isinstance(tenant, str) or not any(matches(tenant, each) for each in issuer.tenants):
        raise TokenRefused("The token names no tenant that its issuer may speak for.")
    try:
        check_record_name("tenant", tenant)
    except BadValue:
        raise TokenRefused("The token names a tenant that cannot be one.") from None
    return tenant


def _models(claims: Mapping[str, Any], issuer: OidcTable) -> list[str] | None:
    patterns = _values(claims, issuer.models_claim)
    try:
        if patterns:
            check_models(patterns)
    except BadValue:
        raise TokenRefused(f"The token's models cannot be used: at most {MODELS} shell patterns.") from None
    return patterns


def _tiers(claims: Mapping[str, Any], issuer: OidcTable) -> list[str] | None:
    tiers = _values(claims, issuer.tiers_claim)
    return None if tiers is None else [tier for tier in tiers if tier in frozenset(Tier)]


def _role(claims: Mapping[str, Any], issuer: OidcTable) -> AdminRole | None:
    """The greatest of those that its values mean."""
    values = _values(claims, issuer.roles_claim) or []
    found = [issuer.roles[value] for value in values if value in issuer.roles]
    return next((role for role in found if all(role.covers(other) for other in found)), None)


def _values(claims: Mapping[str, Any], name: str | None) -> list[str] | None:
    """Texts in a list, or in one text divided by blanks (as RFC 8693's ``scope``) or commas; None where no
    claim is meant to say any."""
    if name is None:
        return None
    value = claim(claims, name)
    if isinstance(value, str):
        value = [part for part in _BLANKS.split(value) if part]
    if not isinstance(value, list):
        return []
    return [each for each in value[:VALUES] if isinstance(each, str)]
