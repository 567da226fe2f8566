"""The public keys that an issuer of tokens signs with. Pure.

They come from its JSON Web Key Set (RFC 7517). Each is good for one algorithm, which its own kind decides and
no token (RFC 8725 §3.1): so a public key can never be taken for the secret of another algorithm.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import orjson
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from jwt import PyJWK
from jwt.exceptions import PyJWTError

ALGORITHMS = ("RS256", "ES256", "EdDSA")
"""Signatures that are taken. None is symmetric: nobody can sign with what verifies (RFC 8725 §2.1)."""


KEYS = 64
"""Most keys that are looked at."""

KID_CHARS = 256

RSA_BITS = (2048, 8192)
"""Shorter ones can be broken (RFC 7518 §3.3), longer ones cost too much to verify with."""

_PUBLIC = frozenset(("kty", "crv", "n", "e", "x", "y"))
"""What is taken of a key: if its issuer published the private part too, we do not keep it."""


class BadKeySet(Exception):
    """Not a key set, or none of its keys can be used. The message says why."""


@dataclass(frozen=True, slots=True)
class KeySet:
    """Keys by their id (None: it has none) and algorithm."""

    keys: Mapping[tuple[str | None, str], PyJWK]
    fingerprint: frozenset[tuple[str | None, str, bytes]]
    """Equal for sets with the same keys."""

    def find(self, kid: str | None, algorithm: str) -> PyJWK | None:
        """The key for a token that names ``kid``; for one that names none, the only one of its algorithm."""
        found = self.keys.get((kid, algorithm))
        if found is not None or kid is not None:
            return found
        fitting = [key for (_, fits), key in self.keys.items() if fits == algorithm]
        return fitting[0] if len(fitting) == 1 else None


def read_keyset(body: bytes, algorithms: Collection[str]) -> KeySet:
    """The keys in ``body`` that can be used with ``algorithms``. Others are left out. Raises BadKeySet."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadKeySet("it is not JSON") from error
    listed = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        raise BadKeySet("it has no list of keys")
    if len(listed) > KEYS:
        raise BadKeySet(f"it has {len(listed)} keys; {KEYS} are allowed")
    keys: dict[tuple[str | None, str], PyJWK] = {}
    prints = set()
    for jwk in filter(_for_verifying, listed):
        fields = {name: value for name, value in jwk.items() if name in _PUBLIC}
        try:
            key = PyJWK(fields)  # for the one algorithm that its kind decides
        except (PyJWTError, ValueError, TypeError, KeyError):
            continue
        kid, algorithm = jwk.get("kid"), key.algorithm_name
        said = (algorithm, "Ed25519" if algorithm == "EdDSA" else algorithm)
        short = isinstance(key.key, RSAPublicKey) and not RSA_BITS[0] <= key.key.key_size <= RSA_BITS[1]
        if algorithm in algorithms and jwk.get("alg", algorithm) in said and not short:
            keys.setdefault((kid, algorithm), key)
            prints.add((kid, algorithm, orjson.dumps(fields, option=orjson.OPT_SORT_KEYS)))
    if not keys:
        raise BadKeySet(f"none of its {len(listed)} keys can be used with {', '.join(sorted(algorithms))}")
    return KeySet(keys, frozenset(prints))


def _for_verifying(jwk: object) -> bool:
    """Whether it is a key, with an id or none, and is meant for verifying signatures."""
    if not isinstance(jwk, dict):
        return False
    kid, operations = jwk.get("kid"), jwk.get("key_ops")
    named = kid is None or (isinstance(kid, str) and len(kid) <= KID_CHARS)
    verifies = operations is None or (isinstance(operations, list) and "verify" in operations)
    return named and verifies and jwk.get("use", "sig") == "sig"
