"""Who somebody with a verified token is here, and what he may do. Pure."""

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from gateway.auth.oidc.issuer import Issuer
from gateway.auth.oidc.verify import TokenRefused, Verified
from gateway.domain.request import Principal, Tier
from gateway.domain.scopes import AdminRole, limited, matches
from gateway.storage.errors import BadValue
from gateway.storage.rules import MODELS, NAME_CHARS, check_models, check_name

VALUES = 256
"""Most values of one claim that are looked at."""

_BLANKS = re.compile(r"[ ,]+")


def principal_of(token: Verified, issuer: Issuer) -> Principal:
    """The holder of ``token``. Raises TokenRefused when it names a tenant that it may not, or none."""
    whose = hashlib.sha256(f"{issuer.issuer}\0{token.subject}".encode()).hexdigest()[:16]
    named = issuer.models_claim is not None or issuer.tiers_claim is not None
    return Principal(
        f"jwt_{whose}",
        token.subject if len(token.subject) <= NAME_CHARS else f"jwt_{whose}",
        _tenant(token.claims, issuer),
        scopes=limited(_models(token.claims, issuer), None, _tiers(token.claims, issuer)) if named else None,
        role=_role(token.claims, issuer),
    )


def claim(claims: Mapping[str, Any], name: str) -> object:
    """The claim ``name``; where there is none, the one that its dots lead to (``realm_access.roles``)."""
    if name in claims:
        return claims[name]
    value: object = claims
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _tenant(claims: Mapping[str, Any], issuer: Issuer) -> str:
    if issuer.tenant_claim is None:
        return issuer.tenant
    tenant = claim(claims, issuer.tenant_claim)
    if not isinstance(tenant, str) or not any(matches(tenant, each) for each in issuer.tenants):
        raise TokenRefused("The token names no tenant that its issuer may speak for.")
    try:
        check_name("tenant", tenant)
    except BadValue:
        raise TokenRefused("The token names a tenant that cannot be one.") from None
    return tenant


def _models(claims: Mapping[str, Any], issuer: Issuer) -> list[str] | None:
    if issuer.models_claim is None:
        return None
    patterns = _values(claim(claims, issuer.models_claim))
    try:
        if patterns:
            check_models(patterns)
    except BadValue:
        raise TokenRefused(f"The token's models cannot be used: at most {MODELS} shell patterns.") from None
    return patterns


def _tiers(claims: Mapping[str, Any], issuer: Issuer) -> list[str] | None:
    if issuer.tiers_claim is None:
        return None
    return [value for value in _values(claim(claims, issuer.tiers_claim)) if value in frozenset(Tier)]


def _role(claims: Mapping[str, Any], issuer: Issuer) -> AdminRole | None:
    """The greatest of those that its values mean."""
    if issuer.roles_claim is None:
        return None
    found = [
        issuer.roles[value] for value in _values(claim(claims, issuer.roles_claim)) if value in issuer.roles
    ]
    return next((role for role in found if all(role.covers(other) for other in found)), None)


def _values(value: object) -> list[str]:
    """Texts in a list, or in one text divided by blanks (as RFC 8693's ``scope``) or commas."""
    if isinstance(value, str):
        value = [part for part in _BLANKS.split(value) if part]
    if not isinstance(value, list):
        return []
    return [each for each in value[:VALUES] if isinstance(each, str)]
