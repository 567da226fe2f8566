"""Whether a token is what it says: form, signature, times, issuer, audience (RFC 7519 §7.2, RFC 8725).

Pure: keys and time are arguments.
"""

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jwt
import orjson
from jwt.exceptions import InvalidAudienceError, InvalidIssuerError, MissingRequiredClaimError, PyJWTError

from gateway.auth.oidc.keyset import ALGORITHMS, KID_CHARS, KeySet
from gateway.domain.oidc import OidcTable

TOKEN_BYTES = 8192
"""Longest token that is looked at."""

SUBJECT_CHARS = 255
"""Longest ``sub`` (OpenID Connect Core 1.0 §2)."""

_FORM = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*")

_TYPES = ("", "jwt", "at+jwt", "application/at+jwt", "application/jwt")
"""Values of ``typ``; a token made for something else is not one for us (RFC 8725 §3.11, RFC 9068 §2.1)."""

_SPECIAL = ("crit", "b64", "zip", "enc")
"""Header fields that change how the rest is to be read; we do none of it (RFC 7515 §4.1.11)."""

_LATEST_S = 2**40

_jwt = jwt.PyJWT(
    {"verify_exp": False, "verify_nbf": False, "verify_iat": False, "verify_sub": False, "verify_jti": False}
)
"""Verifies signature, issuer and audience. It would hold times against the machine's clock only, so they are
verified here."""


class TokenRefused(Exception):
    """A token that lets nobody in. The message is fit for its sender, and holds nothing of the token."""

    code = "invalid_token"


class TokenOutOfDate(TokenRefused):
    """It was good, and its time is over."""

    code = "token_expired"


class KeyUnknown(TokenRefused):
    """The issuer's keys, as far as they are known here, have none with the id that the token names."""

    code = "signing_key_unknown"


@dataclass(frozen=True, slots=True)
class Unverified:
    """What a token says of itself, before anything of it is believed: only good for choosing keys."""

    text: str
    issuer: str
    algorithm: str
    kid: str | None


@dataclass(frozen=True, slots=True)
class Verified:
    """What its issuer signed."""

    subject: str
    expires_s: float
    """Unix time."""
    claims: Mapping[str, Any]


def read_token(text: str) -> Unverified:
    """What a token says of itself. Raises TokenRefused for what is none, or none of a kind that is taken."""
    if len(text) > TOKEN_BYTES:
        raise TokenRefused(f"The token is longer than {TOKEN_BYTES} bytes.")
    if _FORM.fullmatch(text) is None:
        raise TokenRefused("This is neither an API key of this gateway nor a signed JSON Web Token.")
    header_part, payload_part, _ = text.split(".")
    header, payload = _object(header_part), _object(payload_part)
    algorithm, kid, kind = header.get("alg"), header.get("kid"), header.get("typ", "")
    if algorithm not in ALGORITHMS:
        raise TokenRefused(f"The token's algorithm is not taken here; these are: {', '.join(ALGORITHMS)}.")
    if any(name in header for name in _SPECIAL):
        raise TokenRefused("The token's header asks for something that is not done here.")
    if not isinstance(kind, str) or kind.lower() not in _TYPES:
        raise TokenRefused("The token is of a kind that gives no access.")
    if kid is not None and (not isinstance(kid, str) or len(kid) > KID_CHARS):
        raise TokenRefused("The token's key id cannot be one.")
    issuer = payload.get("iss")
    if not isinstance(issuer, str):
        raise TokenRefused("The token does not say who issued it.")
    return Unverified(text, issuer, algorithm, kid)


def verify_token(token: Unverified, issuer: OidcTable, keys: KeySet, wall_s: float) -> Verified:
    """What ``issuer`` signed, at Unix time ``wall_s``. Raises TokenRefused.

    The algorithm that verifies is the key's own; what the token says of it only finds the key.
    """
    if token.algorithm not in issuer.algorithms:
        raise TokenRefused(f"The token's issuer signs with {', '.join(issuer.algorithms)} only.")
    key = keys.find(token.kid, token.algorithm)
    if key is None:
        raise KeyUnknown("The token is signed with a key that its issuer is not known to have; try again.")
    try:
        claims = _jwt.decode(
            token.text, key, [key.algorithm_name], issuer=issuer.issuer, audience=issuer.audience
        )
    except InvalidIssuerError:
        raise TokenRefused("The token is another issuer's.") from None
    except (InvalidAudienceError, MissingRequiredClaimError):
        raise TokenRefused("The token is for somebody else than this gateway (aud).") from None
    except (PyJWTError, ValueError, TypeError, RecursionError):
        if token.kid is None:  # the only key may have been changed for another
            raise KeyUnknown(
                "The token is signed with another key than its issuer is known to have."
            ) from None
        raise TokenRefused("The token's signature is not its issuer's.") from None
    expires_s = _check_times(claims, issuer.skew_s, wall_s)
    subject = claims.get("sub")
    if not isinstance(subject, str) or not 0 < len(subject) <= SUBJECT_CHARS or not subject.isprintable():
        raise TokenRefused("The token does not say whose it is (sub).")
    return Verified(subject, expires_s, claims)


def _object(part: str) -> dict[str, Any]:
    try:
        value = orjson.loads(base64.b64decode(part + "=" * (-len(part) % 4), b"-_", validate=True))
    except (binascii.Error, ValueError):
        value = None
    if not isinstance(value, dict):
        raise TokenRefused("This is not a JSON Web Token: a part of it holds no JSON object.")
    return value


def _check_times(claims: Mapping[str, Any], skew_s: float, wall_s: float) -> float:
    """When it ends. A token without an end is refused."""
    expires_s = _time(claims, "exp")
    if expires_s is None:
        raise TokenRefused("The token has no end (exp).")
    for name in ("nbf", "iat"):
        begins_s = _time(claims, name)
        if begins_s is not None and begins_s > wall_s + skew_s:
            raise TokenRefused(f"The token is not valid yet ({name}).")
    if wall_s >= expires_s + skew_s:
        raise TokenOutOfDate("The token has expired; get a new one from its issuer.")
    return expires_s


def _time(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LATEST_S:
        raise TokenRefused(f"The token's {name} is no time.")
    return float(value)
