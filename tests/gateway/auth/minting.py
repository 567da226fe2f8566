"""An issuer of tokens for tests: keys of every kind, key sets, tokens good and bad."""

import base64
import functools
from typing import Any

import jwt
import orjson
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from gateway.domain.oidc import OidcTable

ISSUER = "https://id.example"
AUDIENCE = "trunkline"
NOW_S = 1_000_000.0

_ALGORITHMS = {"RS256": RSAAlgorithm, "ES256": ECAlgorithm, "EdDSA": OKPAlgorithm}


@functools.cache
def private_key(kind: str, name: str = "a") -> Any:
    """One of a ``kind``, the same for the same ``name``."""
    made = {
        "RS256": lambda: rsa.generate_private_key(65537, 2048),
        "RS1024": lambda: rsa.generate_private_key(65537, 1024),
        "ES256": lambda: ec.generate_private_key(ec.SECP256R1()),
        "ES384": lambda: ec.generate_private_key(ec.SECP384R1()),
        "EdDSA": ed25519.Ed25519PrivateKey.generate,
        "Ed448": ed448.Ed448PrivateKey.generate,
    }
    return made[kind]()


def jwk(kind: str, kid: str | None, name: str = "a", **more: Any) -> dict[str, Any]:
    """Its public part as a JWK."""
    writer: dict[str, Any] = {
        "RS1024": RSAAlgorithm,
        "ES384": ECAlgorithm,
        "Ed448": OKPAlgorithm,
    } | _ALGORITHMS
    public = writer[kind].to_jwk(private_key(kind, name).public_key(), as_dict=True)
    public.pop("key_ops", None)
    return {**public, **({} if kid is None else {"kid": kid}), **more}


def jwks(*keys: dict[str, Any]) -> bytes:
    return orjson.dumps({"keys": keys})


def claims(**more: Any) -> dict[str, Any]:
    """Good ones, with ``more`` in place of or beside them; None leaves one out."""
    all_of_them = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "exp": NOW_S + 600, "iat": NOW_S} | more
    return {name: value for name, value in all_of_them.items() if value is not None}


def token(
    kind: str = "ES256",
    kid: str | None = "k1",
    name: str = "a",
    header: dict[str, Any] | None = None,
    **more: Any,
) -> str:
    """A token with good claims, signed with that key."""
    headers = {**({} if kid is None else {"kid": kid}), **(header or {})}
    return jwt.PyJWS().encode(orjson.dumps(claims(**more)), private_key(kind, name), kind, headers)


def forged(header: Any, payload: Any, signature: bytes = b"") -> str:
    """A token made by hand."""
    parts = (orjson.dumps(header), orjson.dumps(payload), signature)
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


def issuer(**more: Any) -> OidcTable:
    return OidcTable(
        **{"issuer": ISSUER, "audience": AUDIENCE, "jwks_url": "https://id.example/keys", **more}
    )
