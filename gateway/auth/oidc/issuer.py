"""What is trusted of one issuer of tokens. Pure data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

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
