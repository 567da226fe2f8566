"""Which models were ever served: a gateway that was restarted knows what to wait for."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from sqlalchemy import bindparam, delete, insert, select, update

from gateway.storage import schema
from gateway.storage.database import Database


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
        table = schema.models
        if not served:
            return
        with self._database.write() as connection:
            known = set(connection.execute(select(table.c.name)).scalars())
            old = [{"model": name} for name in served if name in known]
            new = [
                {"name": name, "first_s": first_s.get(name, wall_s), "last_s": wall_s}
                for name in served
                if name not in known
            ]
            if old:
                connection.execute(
                    update(table).where(table.c.name == bindparam("model")).values(last_s=wall_s), old
                )
            if new:
                connection.execute(insert(table), new)
            if len(known) + len(new) > most:
                kept = select(table.c.name).order_by(table.c.last_s.desc(), table.c.name).limit(most)
                connection.execute(delete(table).where(table.c.name.not_in(kept)))
