"""What was used, as sums of each day, key, tenant, model and deployment, and which models were ever served.

Days are UTC.
"""

import secrets
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    Delete,
    Double,
    Insert,
    Row,
    bindparam,
    case,
    cast,
    delete,
    func,
    insert,
    select,
    tuple_,
)
from sqlalchemy.exc import IntegrityError

from gateway.domain.quotas import UsageGrouping
from gateway.storage import schema
from gateway.storage.database import Database

MOST = 2**53
"""Where a sum stays: no engine has counted so much, and JSON's readers count no further. Sums of sums are
made in floating point: a sum of integers fails beyond 64 bits, and agents may lie."""

BATCHES_KEPT_S = 7 * 86_400.0
"""So long the latest batch of a process is remembered that adds no more: it is over."""

_SWEEP_BATCHES = 1000


class Account(NamedTuple):
    """What is added up together."""

    day: str
    """``2026-11-21``."""
    key_id: str
    tenant: str
    model: str
    deployment: str = ""
    """That answered last, ``agent/id``; empty where none did."""


@dataclass(slots=True)
class Amount:
    """Requests that an engine began to answer, and the tokens that engines counted for them."""

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    gpu_s: float = 0.0
    """GPU-seconds (:mod:`gateway.quota.usage`)."""
    cost: float = 0.0
    """In money, by the prices at the time."""

    def add(self, other: "Amount") -> None:
        self.requests += other.requests
        self.prompt_tokens += other.prompt_tokens
        self.completion_tokens += other.completion_tokens
        self.cached_tokens += other.cached_tokens
        self.gpu_s += other.gpu_s
        self.cost += other.cost


@dataclass(frozen=True, slots=True)
class Total:
    """What one key, tenant or model used, what one deployment was used for, or all of one day."""

    name: str
    """A key's name, where the key is still known, else its id."""
    tenant: str | None
    """A key's tenant; None for the other totals."""
    amount: Amount
    key_id: str | None = None
    """A key's id, which tells it from others that had its name; None for the other totals."""

    @property
    def place(self) -> tuple[str, ...]:
        """What totals are in the order of."""
        return (self.name, *(each for each in (self.tenant, self.key_id) if each is not None))


_SUMS = (*schema.COUNTS, "gpu_s", "cost")


class DailySpending(NamedTuple):
    """What one tenant used in one day."""

    tenant: str
    day: str
    tokens: int
    gpu_s: float
    cost: float


class UsageStore:
    """The sums. Every method raises StateError when the database fails."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.process = secrets.token_hex(8)
        """Tells the batches of this process from others'."""

    # Used twice a second, so made once. Most processes that open a store add nothing, so not made before.

    @cached_property
    def _upsert(self) -> Insert:
        return self._database.upsert(schema.usage, _sum)

    @cached_property
    def _note(self) -> Insert:
        return insert(schema.usage_batches)

    @cached_property
    def _forget_earlier(self) -> Delete:
        batches = schema.usage_batches.c
        return delete(schema.usage_batches).where(
            batches.process == bindparam("of_process"), batches.batch < bindparam("before")
        )

    def add(self, amounts: Mapping[Account, Amount], batch: int | None = None) -> None:
        """Add ``amounts`` to what is there, all of them or, when it fails, none.

        Whether it failed may be unknown, where the connection to a server was lost. So with a ``batch``, a
        number that this process gives to no other amounts and that rises, adding them again changes nothing.
        """
        if not amounts:
            return
        rows = [
            account._asdict() | {name: min(getattr(amount, name), MOST) for name in _SUMS}
            for account, amount in sorted(amounts.items())  # in one order, or two processes wait in a circle
        ]
        try:
            with self._database.write_concurrently() as connection:
                if batch is not None:
                    self._note_batch(connection, batch)
                connection.execute(self._upsert, rows)
        except IntegrityError:
            if batch is None or not self._was_added(batch):
                raise

    def _note_batch(self, connection: Connection, batch: int) -> None:
        """Raises IntegrityError where it is noted, after waiting for who is just noting it."""
        table, now_s = schema.usage_batches, time.time()
        connection.execute(self._note, {"process": self.process, "batch": batch, "added_s": now_s})
        connection.execute(self._forget_earlier, {"of_process": self.process, "before": batch})
        if batch % _SWEEP_BATCHES == 0:
            gone = select(table.c.process, table.c.batch).where(table.c.added_s < now_s - BATCHES_KEPT_S)
            gone = gone.order_by(*table.primary_key).with_for_update(skip_locked=True)
            connection.execute(delete(table).where(tuple_(*table.primary_key).in_(gone)))

    def _was_added(self, batch: int) -> bool:
        table = schema.usage_batches.c
        query = select(table.batch).where(table.process == self.process, table.batch == batch)
        with self._database.read() as connection:
            return connection.execute(query).first() is not None

    def totals(
        self, by: UsageGrouping, since: str = "", *, after: Sequence[str] = (), most: int | None = None
    ) -> tuple[Total, ...]:
        """Totals from the day ``since`` on, in the order of their names: those that come behind ``after``
        (:attr:`Total.place`), ``most`` of them."""
        used, keys = schema.usage, schema.keys
        sums = [_total_of(used.c[name]).label(name) for name in _SUMS]
        if by is UsageGrouping.KEY:
            name = func.coalesce(keys.c.name, used.c.key_id).label("name")
            query = (
                select(name, used.c.tenant.label("tenant"), used.c.key_id.label("key_id"), *sums)
                .select_from(used.outerjoin(keys, keys.c.id == used.c.key_id))
                .group_by(used.c.key_id, used.c.tenant, name)
            )
            place: tuple[ColumnElement[Any], ...] = (name, used.c.tenant, used.c.key_id)
        else:
            column = used.c[by.value]
            query = select(column.label("name"), *sums).group_by(column)
            place = (column,)
        if after:
            query = query.where(tuple_(*place) > tuple_(*after))
        query = query.order_by(*place).limit(most)
        with self._database.read() as connection:
            return tuple(map(_total, connection.execute(query.where(used.c.day >= since))))

    def spent(self, since: str) -> Sequence[DailySpending]:
        """What was spent, by tenant and day, from the day ``since`` on."""
        used = schema.usage.c
        tokens = _total_of(used.prompt_tokens + used.completion_tokens)
        query = (
            select(used.tenant, used.day, tokens, _total_of(used.gpu_s), _total_of(used.cost))
            .where(used.day >= since)
            .group_by(used.tenant, used.day)
        )
        with self._database.read() as connection:
            return [
                DailySpending(tenant, day, int(tokens), gpu_s, cost)
                for tenant, day, tokens, gpu_s, cost in connection.execute(query)
            ]


def _total(row: Row[tuple[object, ...]]) -> Total:
    facts = row._mapping
    counts = {name: int(facts[name]) for name in schema.COUNTS}
    amount = Amount(**counts, gpu_s=facts["gpu_s"], cost=facts["cost"])
    return Total(facts["name"], facts.get("tenant"), amount, facts.get("key_id"))


def _sum(before: ColumnElement[Any], added: ColumnElement[Any]) -> ColumnElement[Any]:
    """The sum of the stored and the added amount, ``MOST`` at most."""
    return case((before + added > MOST, MOST), else_=before + added)


def _total_of(amounts: ColumnElement[Any]) -> ColumnElement[float]:
    return func.sum(cast(amounts, Double))


@dataclass(frozen=True, slots=True)
class ModelFact:
    """A name, and when it was first and last served, as far as was noted. Times are seconds since 1970."""

    name: str
    first_s: float
    last_s: float


class ModelStore:
    """The models. Every method raises StateError when the database fails."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def list(self, most: int) -> tuple[ModelFact, ...]:
        """The ``most`` that were served last, the latest of them last."""
        table = schema.models
        query = select(table).order_by(table.c.last_s.desc(), table.c.name).limit(most)
        with self._database.read() as connection:
            rows = connection.execute(query).all()
        return tuple(ModelFact(row.name, row.first_s, row.last_s) for row in reversed(rows))

    def note(self, first_s: Mapping[str, float], served: Collection[str], wall_s: float, most: int) -> None:
        """Models that are served now, those not known yet with the time in ``first_s``; only the ``most``
        that were served last are kept."""
        if not served:
            return
        table = schema.models
        rows = [
            {"name": name, "first_s": first_s.get(name, wall_s), "last_s": wall_s} for name in sorted(served)
        ]
        beyond = select(table.c.name).order_by(table.c.last_s.desc(), table.c.name).offset(most)
        beyond = beyond.with_for_update(skip_locked=True)
        with self._database.write_concurrently() as connection:
            connection.execute(self._database.upsert(table, keep=("first_s",)), rows)
            connection.execute(delete(table).where(table.c.name.in_(beyond)))
