"""What is trusted of one issuer of tokens, and the public keys that it signs with. Pure.

Keys come from its JSON Web Key Set (RFC 7517). Each is good for one algorithm, which its own kind decides and
no token (RFC 8725 §3.1): so a public key can never be taken for the secret of another algorithm.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import orjson
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from jwt import PyJWK
from jwt.exceptions import PyJWTError

from gateway.domain.scopes import AdminRole

ALGORITHMS = ("RS256", "ES256", "EdDSA")
"""Signatures that are taken. None is symmetric: nobody can sign with what verifies (RFC 8725 §2.1)."""


@dataclass(frozen=True, slots=True)
class Issuer:
    """One issuer. A claim that is named here and missing in a token grants nothing."""

    issuer: str
    """Compared as it is with the claim ``iss``."""
    audiences: tuple[str, ...]
    """One of them must be in the claim ``aud``."""
    jwks_url: str | None = None
    """Where its keys are; None: its discovery document says so (OpenID Connect Discovery 1.0 §4)."""
    algorithms: tuple[str, ...] = ALGORITHMS
    skew_s: float = 60.0
    """How far its clock and ours may be apart."""
    tenant: str = "default"
    """Of everybody, where no claim says it."""
    tenant_claim: str | None = None
    tenants: tuple[str, ...] = ("*",)
    """Tenants that it may name, shell patterns."""
    models_claim: str | None = None
    """Shell patterns of models; without it all."""
    tiers_claim: str | None = None
    """Without it all."""
    roles_claim: str | None = None
    """Without it nobody has a role."""
    roles: Mapping[str, AdminRole] = field(default_factory=lambda: {role.value: role for role in AdminRole})
    """What the values of that claim mean here."""
    refresh_s: float = 3600.0
    """How often keys are fetched when the issuer does not say how long they keep."""
    stale_s: float = 86_400.0
    """So long after the last success keys are still used when they cannot be fetched."""
    ca_file: Path | None = None
    """Authorities for its certificate, PEM; None: the system's."""


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
