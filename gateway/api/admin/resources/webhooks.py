"""Webhooks: the secrets that sign them, and how their deliveries went."""

from typing import TYPE_CHECKING, Annotated

from annotated_types import Ge, Le, MaxLen

from gateway.api.admin.resources.resource import (
    REQUIRED,
    AdminRequest,
    Field,
    Json,
    Resource,
    ResourceCommand,
    Table,
    facts_of,
)
from gateway.api.admin.resources.text import duration_field, format_time
from gateway.domain.scopes import AdminRole
from gateway.domain.webhooks import DeliveryState

if TYPE_CHECKING:
    from gateway.domain.webhooks import Delivery
    from gateway.storage import Store

_ROWS = 1000

WEBHOOKS = Resource(
    "webhook",
    "/admin/webhooks",
    "Webhooks: their secrets, and how their deliveries went.",
    example="trunkline webhook deliveries --outcome failed",
    argument=("delivery", "The delivery's id, which is the event's."),
)
WEBHOOK_SECRETS = Resource(
    "secret",
    "/admin/webhooks/secrets",
    "Secrets that sign webhooks.",
    example="trunkline webhook secret create acme",
    argument=("tenant", "Whose it is; '*': for the gateway's own webhook (jobs.webhook)."),
    within="webhook",
)

_NEW_SECRET = (Field("tenant", str, WEBHOOK_SECRETS.argument[1], default=REQUIRED, option=""),)
_SECRET_FACTS = ("tenant", "created_s", "rotated_s", "previous_until_s")


def _created_text(facts: Json) -> str:
    return (
        f"Webhooks of tenant {facts['tenant']!r} are signed with this secret. Give it to who receives "
        "them: it is not shown again."
    )


@WEBHOOK_SECRETS.operation(
    "POST",
    "",
    ResourceCommand("create", _created_text, last_line="secret"),
    fields=_NEW_SECRET,
    makes_state=True,
)
def create_webhook_secret(store: "Store", request: AdminRequest) -> Json:
    """Make the secret that signs a tenant's webhooks and print it as the last line. It is shown this once.

    Example: trunkline webhook secret create acme
    """
    tenant = request.body["tenant"]
    text = store.webhook_secrets.create(tenant, request.wall_s)
    return {"secret": text, **facts_of(store.webhook_secrets.get(tenant), _SECRET_FACTS)}


def _rotated_text(facts: Json) -> str:
    until_s = facts["previous_until_s"]
    old = "no longer signs" if until_s is None else f"signs, too, until {format_time(until_s)}"
    return (
        f"Webhooks of tenant {facts['tenant']!r} have a new secret; the old one {old}. Store it "
        "now, it is not shown again."
    )


_OVERLAP = duration_field(
    "overlap_s", "--overlap", "How long both secrets sign; a receiver takes either.", "24h"
)


@WEBHOOK_SECRETS.operation(
    "POST",
    "/{tenant}/rotate",
    ResourceCommand("rotate", _rotated_text, last_line="secret"),
    fields=(_OVERLAP,),
)
def rotate_webhook_secret(store: "Store", request: AdminRequest) -> Json:
    """Give a tenant's webhooks another secret and print it as the last line. It is shown this once.

    Until the overlap ends both secrets sign (0s: only the new one).

    Example: trunkline webhook secret rotate acme --overlap 24h
    """
    record, text = store.webhook_secrets.rotate(request.name, request.body["overlap_s"], request.wall_s)
    return {"secret": text, **facts_of(record, _SECRET_FACTS)}


_SECRET_TABLE = Table(
    "secrets",
    {
        "TENANT": "tenant",
        "CREATED": "created_s",
        "ROTATED": "rotated_s",
        "OLD ONE SIGNS UNTIL": "previous_until_s",
    },
    "no tenant has a webhook secret",
)


@WEBHOOK_SECRETS.operation("GET", "", ResourceCommand("list", table=_SECRET_TABLE))
def list_webhook_secrets(store: "Store", _request: AdminRequest) -> Json:
    """List whose webhooks can be signed, never the secrets.

    Example: trunkline webhook secret list --json
    """
    return {"secrets": [facts_of(each, _SECRET_FACTS) for each in store.webhook_secrets.list()]}


@WEBHOOK_SECRETS.operation(
    "DELETE", "/{tenant}", ResourceCommand("remove", "Tenant {tenant!r} has no webhook secret.")
)
def remove_webhook_secret(store: "Store", request: AdminRequest) -> Json:
    """Take a tenant's webhook secret away: nothing can be signed then, and nothing is sent.

    Example: trunkline webhook secret remove acme
    """
    store.webhook_secrets.remove(request.name)
    return {"tenant": request.name, "removed": True}


_LIMIT = Field(
    "limit", Annotated[int, Ge(1), Le(_ROWS)], "At most so many.", default=100, least=1, most=_ROWS
)
_DELIVERY_TABLE = Table(
    "deliveries",
    {
        "ID": "id",
        "CREATED": "created_s",
        "TENANT": "tenant",
        "TYPE": "type",
        "OF": "object",
        "STATE": "state",
        "ATTEMPTS": lambda facts: str(facts["attempts"]),
        "NEXT": lambda facts: "" if facts["next_s"] is None else format_time(facts["next_s"]),
        "URL": "url",
        "LAST ERROR": "error",
    },
    "no deliveries of webhooks",
)


@WEBHOOKS.operation(
    "GET",
    "/deliveries",
    ResourceCommand("deliveries", table=_DELIVERY_TABLE),
    role=AdminRole.OPERATOR,
    fields=(
        Field("tenant", Annotated[str, MaxLen(200)], "Only those of this tenant."),
        Field("outcome", DeliveryState, "Only those that are waiting, delivered, failed or gone."),
        Field("object", Annotated[str, MaxLen(200)], "Only those of this job, response or batch."),
        Field("after", Annotated[str, MaxLen(200)], "Go on behind the delivery of this id."),
        _LIMIT,
    ),
)
def list_webhook_deliveries(store: "Store", request: AdminRequest) -> Json:
    """List deliveries of webhooks, the newest first. What has ended is listed for 30 days.

    Queries of URLs, in which receivers may have secrets, are not shown.

    Example: trunkline webhook deliveries --outcome failed
    """
    body = request.body
    state = body.get("outcome")
    found = store.webhooks.list(
        tenant=body.get("tenant"),
        state=None if state is None else DeliveryState(state),
        object_id=body.get("object"),
        after=body.get("after"),
        limit=body["limit"],
    )
    more = found[-1].id if len(found) == body["limit"] else None
    return {"deliveries": [delivery_facts(each) for each in found], "next": more}


@WEBHOOKS.operation(
    "POST",
    "/deliveries/{delivery}/redeliver",
    ResourceCommand("redeliver", "{id} is delivered again now."),
    role=AdminRole.OPERATOR,
)
def redeliver_webhook(store: "Store", request: AdminRequest) -> Json:
    """Deliver an event again, whether it was delivered or not; its id stays, by which a receiver knows it.

    Example: trunkline webhook redeliver evt_0123456789abcdef0123456789abcdef
    """
    return delivery_facts(store.webhooks.redeliver(request.name, request.wall_s))


def delivery_facts(delivery: "Delivery") -> Json:
    """What people are told of a delivery."""
    waits = delivery.state is DeliveryState.WAITING
    event = delivery.event
    return {
        "id": delivery.id,
        "tenant": event.tenant,
        "type": event.type,
        "object": event.object_id,
        "url": event.url.partition("?")[0] + ("?…" if "?" in event.url else ""),
        "state": delivery.state.value,
        "attempts": delivery.attempts,
        "created_s": delivery.created_s,
        "attempted_s": delivery.attempted_s,
        "next_s": delivery.next_s if waits else None,
        "ended_s": delivery.ended_s,
        "status": delivery.status,
        "error": delivery.error,
    }
