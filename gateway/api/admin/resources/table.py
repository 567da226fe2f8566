"""Every resource and operation there is, and how an operation is done on a store."""

from typing import TYPE_CHECKING

from gateway.api.admin.resources.agents import AGENTS, TOKENS
from gateway.api.admin.resources.aliases import ALIASES
from gateway.api.admin.resources.identity import IDENTITY
from gateway.api.admin.resources.keys import KEYS
from gateway.api.admin.resources.reports import AUDIT, USAGE
from gateway.api.admin.resources.resource import AdminRequest, BadInput, Json, Operation
from gateway.api.admin.resources.tenants import PRICES, TENANTS
from gateway.api.admin.resources.webhooks import WEBHOOK_SECRETS, WEBHOOKS
from gateway.domain.aliases import BadAlias
from gateway.domain.quotas import BadQuota
from gateway.domain.residency import BadResidency

if TYPE_CHECKING:
    from gateway.storage import Store

RESOURCES = (
    *(TOKENS, KEYS, TENANTS, PRICES, AGENTS, IDENTITY, ALIASES, USAGE, AUDIT),
    *(WEBHOOKS, WEBHOOK_SECRETS),
)

OPERATIONS: dict[str, Operation] = {each.name: each for resource in RESOURCES for each in resource.operations}
"""All operations of the admin API, by name."""


def run_operation(store: "Store", name: str, request: AdminRequest) -> Json:
    """Do an operation. Waits for the disk; raises RecordError, with BadValue for what cannot be, and
    StateError."""
    from gateway.storage.errors import BadValue

    operation = OPERATIONS[name]
    try:
        return operation.run(store, operation.completed(request))
    except (BadInput, BadAlias, BadQuota, BadResidency) as error:
        raise BadValue(str(error)) from error
