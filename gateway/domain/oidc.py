"""What can be set of issuers whose tokens let clients in."""

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, FilePath

from gateway.domain.scopes import AdminRole
from gateway.domain.urls import check_url


def _checked_url(value: str) -> str:
    check_url(value)
    return value


Claim = Annotated[str, Field(min_length=1, max_length=256)]
Texts = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=1024)]],
    Field(min_length=1, max_length=64),
    BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
]


class OidcTable(BaseModel):
    """One issuer of tokens (``[[oidc]]``)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    issuer: Annotated[str, Field(min_length=1, max_length=1024), AfterValidator(_checked_url)]
    """As tokens name it (iss), to the letter. Its discovery document is below it."""
    audience: Texts
    """As tokens name this gateway (aud); one of several will do."""
    jwks_url: Annotated[str, AfterValidator(_checked_url)] | None = None
    """Where the issuer's keys are; without it, its discovery document says so."""
    algorithms: Annotated[list[Literal["RS256", "ES256", "EdDSA"]], Field(min_length=1, max_length=3)] = [
        "RS256",
        "ES256",
        "EdDSA",
    ]
    """Signatures that are taken."""
    skew_s: Annotated[float, Field(ge=0, le=600)] = 60.0
    """How far the issuer's clock and this one may be apart."""
    tenant: Annotated[str, Field(min_length=1, max_length=64)] = "default"
    """The tenant of all tokens if tenant_claim is not set."""
    tenant_claim: Claim | None = None
    """The claim with the tenant; dots lead into objects. A token without it is refused."""
    tenants: Texts = ["*"]
    """Tenants that the issuer may name, shell patterns."""
    models_claim: Claim | None = None
    """The claim with models, shell patterns; without it set, every model is allowed."""
    tiers_claim: Claim | None = None
    """The claim with tiers; without it set, every tier is allowed."""
    roles_claim: Claim | None = None
    """The claim with roles on the admin API; without it set, nobody has one."""
    roles: Annotated[dict[str, AdminRole], Field(max_length=1000)] = {role.value: role for role in AdminRole}
    """What the values of that claim mean: viewer, operator or admin."""
    refresh_s: Annotated[float, Field(ge=60, le=86_400)] = 3600.0
    """How often keys are fetched when the issuer does not say how long they keep."""
    stale_s: Annotated[float, Field(ge=60, le=2_592_000)] = 86_400.0
    """So long after the last success keys are used that cannot be fetched anew."""
    ca_file: FilePath | None = None
    """Authorities for the issuer's certificate, PEM; without it, the system's."""
