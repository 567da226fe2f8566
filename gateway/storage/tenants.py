"""Tenants' limits in the store."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, delete, func, select

from gateway.domain.quotas import NAMES, BadQuota, TenantLimits
from gateway.storage import schema
from gateway.storage.acts import note_act
from gateway.storage.database import Database
from gateway.storage.errors import BadValue, StateCorrupt, UnknownRecord
from gateway.storage.rules import check_record_name

MOST_TENANTS = 4096
"""With limits of their own: all of them are read whenever one has changed."""


@dataclass(frozen=True, slots=True)
class TenantRecord:
    """A tenant that was given limits. ``changed_s``: seconds since 1970."""

    name: str
    limits: TenantLimits
    changed_s: float


class TenantStore:
    """What tenants may have. A tenant exists by its keys; one without a row has no limits. Every method
    raises StateError when the database fails."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def change(self, name: str, changes: Mapping[str, Any], wall_s: float) -> TenantRecord:
        """Give a tenant these limits, by their names in :data:`gateway.domain.quotas.NAMES`, None: no limit.
        Those not named stay. The tenant as it is then.

        Raises BadValue, and has changed nothing then.
        """
        check_record_name("tenant", name)
        table = schema.tenants
        with self._database.write() as connection:
            row = connection.execute(select(table).where(table.c.name == name)).one_or_none()
            if row is None:
                count = connection.execute(select(func.count()).select_from(table)).scalar_one()
                if count >= MOST_TENANTS:
                    raise BadValue(f"{MOST_TENANTS} tenants have limits; remove one that is not needed first")
            before = {} if row is None else row._asdict()
            facts = {each: changes.get(each, before.get(each)) for each in NAMES}
            try:
                limits = TenantLimits.of(facts)
            except BadQuota as error:
                raise BadValue(str(error)) from error
            values = {**limits.facts(), "changed_s": wall_s}
            connection.execute(self._database.upsert(table), {"name": name, **values})
            schema.next_revision(connection, schema.Topic.LIMITS)
            note_act(connection, "tenant.set", tenant=name, **limits.facts())
        return TenantRecord(name, limits, wall_s)

    def remove(self, name: str) -> None:
        """Take all limits of a tenant away. Raises UnknownRecord."""
        with self._database.write() as connection:
            gone = connection.execute(delete(schema.tenants).where(schema.tenants.c.name == name))
            if gone.rowcount != 1:
                raise UnknownRecord(f"no tenant {name!r} was given limits; see: trunkline tenant list")
            schema.next_revision(connection, schema.Topic.LIMITS)
            note_act(connection, "tenant.remove", tenant=name)

    def list(self) -> Sequence[TenantRecord]:
        """Every tenant that was given limits, by name."""
        with self._database.read() as connection:
            rows = connection.execute(select(schema.tenants).order_by(schema.tenants.c.name))
            return [_record(row) for row in rows]


def _record(row: Row[Any]) -> TenantRecord:
    facts = row._asdict()
    try:
        limits = TenantLimits.of(facts)
    except BadQuota as error:
        raise StateCorrupt(f"the limits of tenant {facts['name']!r} cannot be read ({error})") from error
    return TenantRecord(facts["name"], limits, facts["changed_s"])
