"""Events of webhooks, noted in the transaction that makes them happen: none is lost, and each has one id."""

from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import urlsplit

from sqlalchemy import Connection, insert, select

from gateway.domain.jobs import JobState
from gateway.domain.webhooks import DeliveryState, WebhookEvent, job_event_type, new_event_id
from gateway.storage import schema

_AT_ONCE = 500


def note_job_ends(
    connection: Connection, jobs: Iterable[Any], state: JobState, now_s: float, event_type: str | None = None
) -> None:
    """These jobs end so; who wants to hear of it will. ``jobs`` have an id, a tenant and a webhook (None:
    nobody wants to). ``event_type``: what happened, where the state does not say it."""
    note_events(
        connection,
        [
            WebhookEvent(job.tenant, job.id, event_type or job_event_type(job.id, state), job.webhook)
            for job in jobs
            if job.webhook is not None
        ],
        now_s,
    )


def note_events(connection: Connection, events: Sequence[WebhookEvent], now_s: float) -> None:
    """Deliver these once the transaction is committed, but for those of which the receiver has said before
    that it wants no more."""
    for at in range(0, len(events), _AT_ONCE):
        some = events[at : at + _AT_ONCE]
        gone = _gone(connection, [each.object_id for each in some])
        rows = [_row(each, now_s) for each in some if (each.object_id, each.url) not in gone]
        if rows:
            connection.execute(insert(schema.webhook_deliveries), rows)


def host_of(url: str) -> str:
    """By which deliveries to one receiver are told from those to others."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _gone(connection: Connection, object_ids: Sequence[str]) -> set[tuple[str, str]]:
    table = schema.webhook_deliveries.c
    query = select(table.object_id, table.url).where(
        table.object_id.in_(object_ids), table.state == DeliveryState.GONE.value
    )
    return {(row.object_id, row.url) for row in connection.execute(query)}


def _row(event: WebhookEvent, now_s: float) -> dict[str, Any]:
    return {
        "id": new_event_id(),
        "tenant": event.tenant,
        "object_id": event.object_id,
        "type": event.type,
        "url": event.url,
        "host": host_of(event.url),
        "state": DeliveryState.WAITING.value,
        "created_s": now_s,
        "next_s": now_s,
        "attempts": 0,
        "generation": 0,
    }
