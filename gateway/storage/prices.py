"""Prices of models in the store."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Row, delete, func, select

from gateway.domain.quotas import BadQuota, Price
from gateway.storage import schema
from gateway.storage.acts import note_act
from gateway.storage.database import Database
from gateway.storage.errors import BadValue, StateCorrupt, UnknownRecord
from shared.protocol.limits import MODEL_NAME_CHARS

MOST_PRICES = 4096

OTHER_MODELS = "*"
"""Has the price of every model that has none of its own."""


@dataclass(frozen=True, slots=True)
class PriceRecord:
    """What a model costs. ``changed_s``: seconds since 1970."""

    model: str
    price: Price
    changed_s: float


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
        with self._database.write() as connection:
            gone = connection.execute(delete(schema.prices).where(schema.prices.c.model == model))
            if gone.rowcount != 1:
                raise UnknownRecord(f"{model!r} has no price; see: trunkline price list")
            schema.next_revision(connection, schema.Topic.LIMITS)
            note_act(connection, "price.remove", model=model)

    def list(self) -> Sequence[PriceRecord]:
        """Every price, by model."""
        with self._database.read() as connection:
            rows = connection.execute(select(schema.prices).order_by(schema.prices.c.model))
            return [_record(row) for row in rows]


def _record(row: Row[Any]) -> PriceRecord:
    try:
        price = Price(row.input, row.output, row.gpu_second)
    except BadQuota as error:
        raise StateCorrupt(f"the price of {row.model!r} cannot be read ({error})") from error
    return PriceRecord(row.model, price, row.changed_s)
