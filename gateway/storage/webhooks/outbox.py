"""Deliveries as those see them who make them: taken with a lease, one attempt at a time, and their ends."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Float,
    Row,
    Select,
    and_,
    bindparam,
    delete,
    func,
    or_,
    select,
    update,
)

from gateway.domain.webhooks import Delivery, DeliveryState, DeliveryVerdict, WebhookEvent
from gateway.storage import schema
from gateway.storage.acts import note_act
from gateway.storage.database import Database
from gateway.storage.errors import RecordError, UnknownRecord

_SEEN_AT_ONCE = 200


@dataclass(frozen=True, slots=True)
class DeliveryClaim:
    """A process can make up to ``most`` attempts now."""

    most: int
    lease_s: float
    """Longer than an attempt takes: then, another process may make the next one."""
    per_host: int
    per_tenant: int
    """So many attempts at once to one receiver, and for one tenant."""
    hosts: Mapping[str, int] = field(default_factory=dict)
    tenants: Mapping[str, int] = field(default_factory=dict)
    """How many this process is making just now."""


class WebhookOutbox:
    """Every method raises StateError when the database fails. ``now_s`` is in seconds since 1970."""

    _table = schema.webhook_deliveries

    def __init__(self, database: Database) -> None:
        self._database = database

    @cached_property
    def _any_due(self) -> Select[tuple[int]]:
        """Asked every few seconds, mostly in vain, so made once."""
        table = self._table.c
        due = table.state == DeliveryState.WAITING.value, table.next_s <= bindparam("now_s", type_=Float)
        return select(table.number).where(*due).limit(1)

    def claim(self, claim: DeliveryClaim, now_s: float) -> tuple[Delivery, ...]:
        """Deliveries whose next attempt is the caller's to make, the longest due first. Nothing is written
        and no lock is taken where none is due."""
        if claim.most < 1:
            return ()
        with self._database.read() as connection:
            any_due = connection.execute(self._any_due, {"now_s": now_s}).first() is not None
            numbers = self._chosen(connection, claim, now_s) if any_due else ()
        if not numbers:
            return ()
        table = self._table
        with self._database.write_concurrently() as connection:
            now = self._database.interval_s(connection)
            still = (table.c.number.in_(numbers), *self._due(now, now_s, claim.lease_s))
            query = select(table.c.number).where(*still).order_by(table.c.number)
            ours = [row.number for row in connection.execute(query.with_for_update(skip_locked=True))]
            mine = table.c.number.in_(ours)
            connection.execute(
                update(table)
                .where(mine)
                .values(
                    attempts=table.c.attempts + 1,
                    generation=table.c.generation + 1,
                    attempted_s=now_s,
                    lease_until=now + claim.lease_s,
                )
            )
            taken = select(table).where(mine).order_by(table.c.next_s, table.c.number)
            return tuple(_delivery(row) for row in connection.execute(taken))

    def settle(self, delivery: Delivery, verdict: DeliveryVerdict, now_s: float) -> bool:
        """What came of the attempt. False: the attempt is not the last one any more; nothing changed."""
        table = self._table
        waits = verdict.state is DeliveryState.WAITING
        ended = {"state": verdict.state.value, "ended_s": None if waits else now_s, "lease_until": None}
        told = {"status": verdict.status, "error": verdict.error}
        next_s = {} if verdict.next_s is None else {"next_s": verdict.next_s}
        with self._database.write_concurrently() as connection:
            ours = (
                table.c.id == delivery.id,
                table.c.generation == delivery.generation,
                table.c.state == DeliveryState.WAITING.value,
            )
            changed = connection.execute(update(table).where(*ours).values(**ended, **told, **next_s))
            if changed.rowcount and verdict.state is DeliveryState.GONE:
                others = self._waiting_with(connection, delivery.event)
                connection.execute(update(table).where(table.c.number.in_(others)).values(**ended, **told))
            return changed.rowcount == 1

    def list(
        self,
        *,
        tenant: str | None = None,
        state: DeliveryState | None = None,
        object_id: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> tuple[Delivery, ...]:
        """The newest first. ``after``: those before the delivery of this id. Raises UnknownRecord for one
        that there is not."""
        table = self._table.c
        conditions: list[ColumnElement[bool]] = []
        if tenant is not None:
            conditions.append(table.tenant == tenant)
        if state is not None:
            conditions.append(table.state == state.value)
        if object_id is not None:
            conditions.append(table.object_id == object_id)
        with self._database.read() as connection:
            if after is not None:
                conditions.append(table.number < self._get(connection, after).number)
            query = select(self._table).where(*conditions).order_by(table.number.desc()).limit(limit)
            return tuple(_delivery(row) for row in connection.execute(query))

    def get(self, delivery_id: str) -> Delivery:
        """Raises UnknownRecord."""
        with self._database.read() as connection:
            return _delivery(self._get(connection, delivery_id))

    def redeliver(self, delivery_id: str, now_s: float) -> Delivery:
        """Deliver an event again that was delivered or was not to be, with the same id and all attempts.
        Raises UnknownRecord; RecordError while it is still to be delivered anyway."""
        table = self._table
        with self._database.write() as connection:
            row = self._get(connection, delivery_id, lock=True)
            if row.state == DeliveryState.WAITING:
                raise RecordError(f"{delivery_id} is still being delivered: wait for its end")
            again = {"state": DeliveryState.WAITING.value, "attempts": 0, "next_s": now_s, "ended_s": None}
            values = {**again, "generation": table.c.generation + 1, "lease_until": None}
            connection.execute(update(table).where(table.c.number == row.number).values(**values))
            note_act(connection, "webhook.redeliver", delivery=delivery_id, tenant=row.tenant)
            return _delivery(self._get(connection, delivery_id))

    def forget_ended(self, before_s: float, most: int) -> int:
        """Take away deliveries that ended before a time; how many."""
        table = self._table
        with self._database.write_concurrently() as connection:
            query = select(table.c.number).where(table.c.ended_s < before_s).order_by(table.c.ended_s)
            found = connection.execute(query.limit(most).with_for_update(skip_locked=True))
            numbers = [row.number for row in found]
            if numbers:
                connection.execute(delete(table).where(table.c.number.in_(numbers)))
            return len(numbers)

    def _due(self, now: float, now_s: float, lease_s: float) -> tuple[ColumnElement[bool], ...]:
        """A lease that ends later than any given now could is of a clock that was set back."""
        table = self._table.c
        free = or_(table.lease_until.is_(None), table.lease_until < now, table.lease_until > now + lease_s)
        return (table.state == DeliveryState.WAITING.value, table.next_s <= now_s, free)

    def _chosen(self, connection: Connection, claim: DeliveryClaim, now_s: float) -> Sequence[int]:
        """Numbers of up to ``most``, with room for others whatever one receiver or one tenant has due."""
        table = self._table.c
        full_hosts = [host for host, number in claim.hosts.items() if number >= claim.per_host]
        full_tenants = [tenant for tenant, number in claim.tenants.items() if number >= claim.per_tenant]
        order = (table.next_s, table.number)
        rank = func.row_number().over(partition_by=table.host, order_by=order).label("rank")
        due = select(table.number, table.host, table.tenant, table.next_s, rank).where(
            *self._due(self._database.interval_s(connection), now_s, claim.lease_s),
            table.host.not_in(full_hosts),
            table.tenant.not_in(full_tenants),
        )
        ranked = due.subquery()
        query = select(ranked).where(ranked.c.rank <= claim.per_host)
        ordered = query.order_by(ranked.c.next_s, ranked.c.number).limit(_SEEN_AT_ONCE)
        hosts, tenants = Counter(claim.hosts), Counter(claim.tenants)
        chosen: Sequence[int] = ()
        for row in connection.execute(ordered):
            free = hosts[row.host] < claim.per_host and tenants[row.tenant] < claim.per_tenant
            if free and len(chosen) < claim.most:
                hosts[row.host] += 1
                tenants[row.tenant] += 1
                chosen = (*chosen, row.number)
        return chosen

    def _waiting_with(self, connection: Connection, event: WebhookEvent) -> Sequence[int]:
        """Numbers of the object's deliveries to the same address that wait."""
        table = self._table.c
        same = and_(table.object_id == event.object_id, table.url == event.url)
        query = select(table.number).where(same, table.state == DeliveryState.WAITING.value)
        locked = query.order_by(table.number).with_for_update(skip_locked=True)
        return [row.number for row in connection.execute(locked)]

    def _get(self, connection: Connection, delivery_id: str, *, lock: bool = False) -> Row[Any]:
        query = select(self._table).where(self._table.c.id == delivery_id)
        row = connection.execute(query.with_for_update() if lock else query).first()
        if row is None:
            raise UnknownRecord(f"there is no delivery {delivery_id!r}; see: trunkline webhook deliveries")
        return row


def _delivery(row: Row[Any]) -> Delivery:
    return Delivery(
        row.id,
        WebhookEvent(row.tenant, row.object_id, row.type, row.url),
        row.created_s,
        DeliveryState(row.state),
        row.attempts,
        row.generation,
        row.next_s,
        row.attempted_s,
        row.ended_s,
        row.status,
        row.error,
    )
