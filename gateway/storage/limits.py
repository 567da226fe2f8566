"""All that limits what clients may have: tenants' limits and models' prices.

Both are tables of a few thousand rows at the most, which a gateway reads whole when either has changed.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from sqlalchemy import Connection, Row, delete, func, select

from gateway.domain.quotas import BadQuota, Price, TenantLimits
from gateway.storage import schema
from gateway.storage.acts import note_act
from gateway.storage.database import Database
from gateway.storage.errors import BadValue, StateCorrupt, UnknownRecord
from gateway.storage.records import R, RecordStore
from gateway.storage.rules import check_record_name, is_model_name, refusing

MOST_ROWS = 4096
"""The most rows of each table: all of them are read whenever one has changed."""

OTHER_MODELS = "*"
"""Has the price of every model that has none of its own."""


@dataclass(frozen=True, slots=True)
class TenantRecord:
    """A tenant that was given limits. ``changed_s``: seconds since 1970."""

    name: str
    limits: TenantLimits
    changed_s: float


@dataclass(frozen=True, slots=True)
class PriceRecord:
    """What a model costs. ``changed_s``: seconds since 1970."""

    model: str
    price: Price
    changed_s: float


@dataclass(frozen=True, slots=True)
class LimitsAndPrices:
    """Limits by tenant, prices by model."""

    tenants: Mapping[str, TenantLimits]
    prices: Mapping[str, Price]


class _NamedStore(RecordStore[R]):
    """Rows that are found by their primary key, a name, and that each gateway reads all together."""

    _kind: ClassVar[str]
    """In acts and commands."""
    _named: ClassVar[str]
    """What the name is called in acts."""
    _full: ClassVar[str]
    """What there are too many of, in a refusal."""
    _unknown: ClassVar[str]
    """A refusal of a name that has no row."""

    def remove(self, name: str) -> None:
        """Take away what was given to this name. Raises UnknownRecord."""
        (key,) = self._table.primary_key
        with self._database.write() as connection:
            if connection.execute(delete(self._table).where(key == name)).rowcount != 1:
                raise UnknownRecord(f"{self._unknown.format(name)}; see: trunkline {self._kind} list")
            self._changed(connection, "remove", name)

    def _put(self, connection: Connection, name: str, values: Mapping[str, Any], wall_s: float) -> None:
        """Insert or replace a row. Raises BadValue when there are too many."""
        (key,) = self._table.primary_key
        others = select(func.count()).select_from(self._table).where(key != name)
        if connection.execute(others).scalar_one() >= MOST_ROWS:
            raise BadValue(f"{MOST_ROWS} {self._full}; remove one that is not needed first")
        row = {key.name: name, **values, "changed_s": wall_s}
        connection.execute(self._database.upsert(self._table), row)
        self._changed(connection, "set", name, **values)

    def _changed(self, connection: Connection, what: str, name: str, **values: Any) -> None:
        schema.next_revision(connection, schema.Topic.LIMITS)
        note_act(connection, f"{self._kind}.{what}", **{self._named: name}, **values)


class TenantStore(_NamedStore[TenantRecord]):
    """What tenants may have. A tenant exists by its keys; one without a row has no limits."""

    _table, _order = schema.tenants, (schema.tenants.c.name,)
    _kind, _named = "tenant", "tenant"
    _full, _unknown = "tenants have limits", "no tenant {!r} was given limits"

    def change(self, name: str, changes: Mapping[str, Any], wall_s: float) -> TenantRecord:
        """Give a tenant these limits, by their names in :data:`gateway.domain.quotas.NAMES`, None: no limit.
        Those not named stay. The tenant as it is then.

        Raises BadValue, and has changed nothing then.
        """
        check_record_name("tenant", name)
        with self._database.write() as connection:
            query = select(schema.tenants).where(schema.tenants.c.name == name)
            before = connection.execute(query).mappings().one_or_none()
            with refusing(BadQuota):
                limits = TenantLimits.of({**(before or {}), **changes})
            self._put(connection, name, limits.facts(), wall_s)
        return TenantRecord(name, limits, wall_s)

    def _record(self, row: Row[Any]) -> TenantRecord:
        try:
            return TenantRecord(row.name, TenantLimits.of(row._asdict()), row.changed_s)
        except BadQuota as error:
            raise StateCorrupt(f"the limits of tenant {row.name!r} cannot be read ({error})") from error


class PriceStore(_NamedStore[PriceRecord]):
    """What models cost."""

    _table, _order = schema.prices, (schema.prices.c.model,)
    _kind, _named = "price", "model"
    _full, _unknown = "models have prices", "{!r} has no price"

    def set(self, model: str, input_: float, output: float, gpu_second: float, wall_s: float) -> PriceRecord:
        """Give a model, or with :data:`OTHER_MODELS` all others, a price from now on: for a million tokens of
        prompts, of answers, and for a GPU-second. Raises BadValue."""
        if not is_model_name(model):
            raise BadValue(f"model {model!r} cannot have a price: no model has such a name")
        with refusing(BadQuota):
            price = Price(input_, output, gpu_second)
        with self._database.write() as connection:
            self._put(connection, model, asdict(price), wall_s)
        return PriceRecord(model, price, wall_s)

    def _record(self, row: Row[Any]) -> PriceRecord:
        try:
            return PriceRecord(row.model, Price(row.input, row.output, row.gpu_second), row.changed_s)
        except BadQuota as error:
            raise StateCorrupt(f"the price of {row.model!r} cannot be read ({error})") from error


class LimitStore:
    """``tenants`` and ``prices`` in one. Every method raises StateError when the database fails."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.tenants = TenantStore(database)
        self.prices = PriceStore(database)

    def changed_since(self, revision: int) -> tuple[int, LimitsAndPrices | None]:
        """The present revision, and what there is if it is another than ``revision``, else None. It may be
        newer than the revision, never older."""
        with self._database.read() as connection:
            found_revision = schema.read_revision(connection, schema.Topic.LIMITS)
            present, _ = self._database.since(revision, found_revision)
        if present == revision:
            return present, None
        tenants = {each.name: each.limits for each in self.tenants.list()}
        return present, LimitsAndPrices(tenants, {each.model: each.price for each in self.prices.list()})
