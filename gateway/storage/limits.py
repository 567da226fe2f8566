"""All that limits what clients may have: tenants' limits and models' prices.

Both are tables of a few thousand rows at the most, which a gateway reads whole when either has changed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Row, Table, delete, func, select

from gateway.domain.quotas import NAMES, BadQuota, Price, TenantLimits
from gateway.storage import schema
from gateway.storage.acts import note_act
from gateway.storage.database import Database
from gateway.storage.errors import BadValue, StateCorrupt, UnknownRecord
from gateway.storage.rules import check_record_name
from shared.protocol.limits import MODEL_NAME_CHARS

MOST_TENANTS = 4096
"""With limits of their own: all of them are read whenever one has changed."""

MOST_PRICES = 4096

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
class Terms:
    """Limits by tenant, prices by model."""

    tenants: Mapping[str, TenantLimits]
    prices: Mapping[str, Price]


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
        unknown = f"no tenant {name!r} was given limits; see: trunkline tenant list"
        _remove(self._database, schema.tenants, unknown, "tenant.remove", tenant=name)

    def list(self) -> Sequence[TenantRecord]:
        """Every tenant that was given limits, by name."""
        return [_tenant(row) for row in _rows(self._database, schema.tenants)]


class PriceStore:
    """What models cost. Every method raises StateError when the database fails."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def set(self, model: str, input_: float, output: float, gpu_second: float, wall_s: float) -> PriceRecord:
        """Give a model, or with :data:`OTHER_MODELS` all others, a price from now on: for a million tokens of
        prompts, of answers, and for a GPU-second. Raises BadValue."""
        if not 0 < len(model) <= MODEL_NAME_CHARS or not model.isprintable() or model != model.strip():
            raise BadValue(f"model {model!r} cannot have a price: no model has such a name")
        try:
            price = Price(input_, output, gpu_second)
        except BadQuota as error:
            raise BadValue(str(error)) from error
        table = schema.prices
        values = {**asdict(price), "changed_s": wall_s}
        with self._database.write() as connection:
            others = select(func.count()).select_from(table).where(table.c.model != model)
            if connection.execute(others).scalar_one() >= MOST_PRICES:
                raise BadValue(f"{MOST_PRICES} models have prices; remove one that is not needed first")
            connection.execute(self._database.upsert(table), {"model": model, **values})
            schema.next_revision(connection, schema.Topic.LIMITS)
            note_act(connection, "price.set", model=model, **asdict(price))
        return PriceRecord(model, price, wall_s)

    def remove(self, model: str) -> None:
        """Take a model's price away. Raises UnknownRecord."""
        unknown = f"{model!r} has no price; see: trunkline price list"
        _remove(self._database, schema.prices, unknown, "price.remove", model=model)

    def list(self) -> Sequence[PriceRecord]:
        """Every price, by model."""
        return [_price(row) for row in _rows(self._database, schema.prices)]


class LimitStore:
    """``tenants`` and ``prices`` in one. Every method raises StateError when the database fails."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.tenants = TenantStore(database)
        self.prices = PriceStore(database)

    def changed_since(self, revision: int) -> tuple[int, Terms | None]:
        """The present revision, and what there is if it is another than ``revision``, else None. It may be
        newer than the revision, never older."""
        with self._database.read() as connection:
            present = schema.read_revision(connection, schema.Topic.LIMITS)
        if present == revision:
            return present, None
        tenants = {each.name: each.limits for each in self.tenants.list()}
        return present, Terms(tenants, {each.model: each.price for each in self.prices.list()})


def _remove(database: Database, table: Table, unknown: str, act: str, **named: str) -> None:
    """Delete the row whose primary key ``named`` gives. Raises UnknownRecord, which says ``unknown``."""
    (key,), (name,) = table.primary_key, named.values()
    with database.write() as connection:
        if connection.execute(delete(table).where(key == name)).rowcount != 1:
            raise UnknownRecord(unknown)
        schema.next_revision(connection, schema.Topic.LIMITS)
        note_act(connection, act, **named)


def _rows(database: Database, table: Table) -> Sequence[Row[Any]]:
    with database.read() as connection:
        return connection.execute(select(table).order_by(*table.primary_key)).all()


def _tenant(row: Row[Any]) -> TenantRecord:
    facts = row._asdict()
    try:
        limits = TenantLimits.of(facts)
    except BadQuota as error:
        raise StateCorrupt(f"the limits of tenant {facts['name']!r} cannot be read ({error})") from error
    return TenantRecord(facts["name"], limits, facts["changed_s"])


def _price(row: Row[Any]) -> PriceRecord:
    try:
        price = Price(row.input, row.output, row.gpu_second)
    except BadQuota as error:
        raise StateCorrupt(f"the price of {row.model!r} cannot be read ({error})") from error
    return PriceRecord(row.model, price, row.changed_s)
