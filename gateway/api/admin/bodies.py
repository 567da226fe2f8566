"""Which bodies the operations of :mod:`gateway.api.admin.resources` take over HTTP; the words of
the commands.
"""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from gateway.domain.aliases import FALLBACKS, TARGETS
from gateway.domain.quotas import NAMES, By
from gateway.domain.scopes import AdminRole
from gateway.storage import DEFAULT_TENANT

Names = Annotated[list[str], Field(max_length=64)]
Limit = Annotated[int, Field(ge=1)]
Amount = Annotated[float, Field(gt=0)]


class AdminBody(BaseModel):
    """Members that nobody knows are refused: a misspelt limit is none."""

    model_config = ConfigDict(extra="forbid", strict=True)


class NewKey(AdminBody):
    """Of ``POST /admin/keys``."""

    name: str
    tenant: str = DEFAULT_TENANT
    models: Names | None = None
    routes: Names | None = None
    tiers: Names | None = None
    where: Annotated[dict[str, Names], Field(max_length=64)] | None = None
    role: Annotated[AdminRole, Field(strict=False)] | None = None
    life_s: float | None = None
    rpm: Limit | None = None
    tpm: Limit | None = None
    concurrency: Limit | None = None


class KeyChange(AdminBody):
    """Of ``PATCH /admin/keys/{key}``; null takes a limit away, also that to some routes, or the role."""

    rpm: Limit | None = None
    tpm: Limit | None = None
    concurrency: Limit | None = None
    routes: Names | None = None
    role: Annotated[AdminRole, Field(strict=False)] | None = None


class Rotation(AdminBody):
    """Of ``POST /admin/keys/{key}/rotate``."""

    overlap_s: float = 86_400.0


class NewToken(AdminBody):
    """Of ``POST /admin/tokens``."""

    life_s: float = 86_400.0
    uses: int = 1
    models: Names = ["*"]
    labels: Annotated[dict[str, str], Field(max_length=64)] = {}


class AgentChange(AdminBody):
    """Of ``PATCH /admin/agents/{agent}``: another name, or what it may serve and its labels."""

    name: str | None = None
    models: Names | None = None
    labels: Annotated[dict[str, str], Field(max_length=64)] | None = None


class Revocation(BaseModel):
    """Of ``DELETE /admin/agents/{agent}``."""

    model_config = ConfigDict(strict=True)

    reason: Annotated[str, Field(max_length=500)] = ""


class Targets(AdminBody):
    """Of ``PUT /admin/aliases/{alias}``; targets as ``trunkline alias set`` reads them."""

    targets: Annotated[list[str], Field(min_length=1, max_length=TARGETS)]
    sticky: bool | None = None
    switch: bool = False
    """Whether the history is to call it a switch."""


class MirrorBody(AdminBody):
    """Who gets copies, and of what share of the requests."""

    target: str
    share: float


class AliasPatch(AdminBody):
    """Of ``PATCH /admin/aliases/{alias}``; null takes the one or the other off."""

    mirror: MirrorBody | None = None
    fallback: Annotated[list[str], Field(max_length=FALLBACKS)] | None = None


class Rollback(AdminBody):
    """Of ``POST /admin/aliases/{alias}/rollback``."""

    to: int | None = None
    """The change after which it was what it shall be again."""


class TenantChange(AdminBody):
    """Of ``PATCH /admin/tenants/{tenant}``; null takes a limit away."""

    rpm: Limit | None = None
    tpm: Limit | None = None
    concurrency: Limit | None = None
    tokens_per_day: Limit | None = None
    tokens_per_month: Limit | None = None
    gpu_seconds_per_day: Amount | None = None
    gpu_seconds_per_month: Amount | None = None
    money_per_day: Amount | None = None
    money_per_month: Amount | None = None
    queue_share: Amount | None = None
    weight: Amount | None = None


class NewPrice(AdminBody):
    """Of ``PUT /admin/prices/{model}``: for a million tokens, and for a GPU-second."""

    input: float = 0.0
    output: float = 0.0
    gpu_second: float = 0.0


class Query(BaseModel):
    """What is in a query is text."""

    model_config = ConfigDict(extra="forbid")


Place = Annotated[str, Field(max_length=2000)]
Rows = Annotated[int, Field(ge=1, le=1000)]


class UsageQuery(Query):
    """Of ``GET /admin/usage``: what to add up by, the first day, and where to go on."""

    by: By = By.KEY
    since: Annotated[str, Field(pattern=r"^(\d{4}-\d\d-\d\d)?$")] = ""
    after: Place | None = None
    limit: Rows = 1000


class VerificationQuery(Query):
    """Of ``GET /admin/audit/verify``: an end of the log that was written down, SEQ:HASH."""

    expect: Annotated[str, Field(pattern=r"^[0-9]{1,18}:[0-9a-fA-F]{64}$")] | None = None


class LinesQuery(Query):
    """Of ``GET /admin/audit``: from which moment on (as lines have it), which kinds (separated by commas),
    where to go on."""

    since: Annotated[str, Field(max_length=40)] = ""
    kind: Annotated[str, Field(max_length=2000)] = ""
    after: Place | None = None
    limit: Rows = 1000


assert set(TenantChange.model_fields) == set(NAMES)

BODIES: dict[str, type[BaseModel]] = {
    "create_key": NewKey,
    "set_key": KeyChange,
    "rotate_key": Rotation,
    "create_token": NewToken,
    "set_agent": AgentChange,
    "revoke_agent": Revocation,
    "set_alias": Targets,
    "change_alias": AliasPatch,
    "rollback_alias": Rollback,
    "set_tenant": TenantChange,
    "set_price": NewPrice,
}
"""By operation; the others take no body."""

QUERIES: dict[str, type[BaseModel]] = {
    "show_usage": UsageQuery,
    "verify_audit": VerificationQuery,
    "export_audit": LinesQuery,
}
"""What operations take in the query; the others pass over it."""
