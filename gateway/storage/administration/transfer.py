"""Moves the files of a state directory into a store on a server. The files stay as they are."""

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from sqlalchemy import Connection, Table, delete, func, select

from gateway.domain.state_dir import DATABASE_NAME
from gateway.domain.store_address import StoreAddress
from gateway.storage import schema
from gateway.storage.errors import StateBusy, StateError, StateMissing
from gateway.storage.identity import IdentityStore
from gateway.storage.key_files import GatewayKeyFiles
from gateway.storage.locks import ServerLock
from gateway.storage.migrations import OWN_FACTS
from gateway.storage.postgres import PostgresDatabase
from gateway.storage.secret_box import SecretBox
from gateway.storage.sqlite import SqliteDatabase, copy_files
from gateway.storage.wrapped_keys import (
    CLUSTER_KEY_NAME,
    load_or_make_cluster_key,
    wrap_key,
)

_CHUNK_ROWS = 1000


def import_files(state_dir: Path, address: StoreAddress, *, replace: bool = False) -> dict[str, int]:
    """Copy everything in ``state_dir`` to the server, all of it or nothing; the rows of each table.

    The gateway's key is wrapped with the cluster key, which is made where there is none: in ``state_dir``, or
    where the address says. No gateway may run on either. With ``replace`` what is in the store is deleted
    first. Raises StateError.
    """
    if not (state_dir / DATABASE_NAME).exists():
        raise StateMissing(f"there is no {DATABASE_NAME} in {state_dir}: give the --state to import")
    with contextlib.ExitStack() as opened:
        opened.callback(ServerLock(state_dir).close)
        source = opened.enter_context(_copy_of(state_dir))
        wrapped = _wrapped_keys(state_dir, source, address)
        target = PostgresDatabase(address)
        opened.callback(target.close)
        if target.is_served():
            raise StateBusy(f"a gateway uses {address}: stop every gateway there first")
        with source.read() as reading, target.write() as writing:
            _make_empty(writing, address, replace=replace)
            counts = {
                str(table.name): _copy(table, reading, writing) for table in schema.metadata.sorted_tables
            }
            if address.cluster_key is not None:
                boxes = SecretBox(state_dir / CLUSTER_KEY_NAME), SecretBox(address.cluster_key)
                _encrypt_anew(writing, *boxes)
            for name, value in wrapped.items():
                writing.execute(schema.facts.insert(), {"name": name, "value": value})
            target.align_sequences(writing)
            _verify(writing, counts, len(wrapped))
    return counts


@contextlib.contextmanager
def _copy_of(state_dir: Path) -> Iterator[SqliteDatabase]:
    """The database as it is now, in another place: opening it may upgrade it."""
    with tempfile.TemporaryDirectory(prefix="trunkline-import-") as directory:
        copy = Path(directory) / DATABASE_NAME
        copy_files(state_dir / DATABASE_NAME, copy)
        database = SqliteDatabase(copy)
        try:
            yield database
        finally:
            database.close()


def _wrapped_keys(state_dir: Path, source: SqliteDatabase, address: StoreAddress) -> Mapping[str, str]:
    """The facts that hold the gateway's keys on the server."""
    keys = IdentityStore(source, GatewayKeyFiles(state_dir)).keys
    wrapping = load_or_make_cluster_key(address.cluster_key or state_dir / CLUSTER_KEY_NAME)
    held = [keys.current] + ([] if keys.previous is None else [keys.previous])
    return {name: value for each in held for name, value in wrap_key(each.private_key, wrapping).items()}


def _make_empty(connection: Connection, address: StoreAddress, *, replace: bool) -> None:
    """Raises StateError for a store that holds something, unless it is to be replaced."""
    others = [
        table for table in schema.metadata.sorted_tables if table not in (schema.facts, schema.revisions)
    ]
    lasting = [table for table in others if table not in schema.OF_ONE_STORE]
    held = [table.name for table in lasting if connection.execute(select(table).limit(1)).first() is not None]
    foreign = select(schema.facts.c.name).where(schema.facts.c.name.not_in(OWN_FACTS))
    held += ["facts"] if connection.execute(foreign.limit(1)).first() is not None else []
    if held and not replace:
        raise StateError(
            f"{address} is not empty ({', '.join(held)}): give an empty database or schema, or --replace to "
            "delete what is there"
        )
    for table in reversed(others):
        connection.execute(delete(table))
    connection.execute(delete(schema.facts).where(schema.facts.c.name.not_in(OWN_FACTS)))


def _copy(table: Table, reading: Connection, writing: Connection) -> int:
    """How many rows there were, but for facts about the tables themselves."""
    if table in schema.OF_ONE_STORE:
        return 0
    query = select(table)
    if table is schema.facts:
        query = query.where(schema.facts.c.name.not_in(OWN_FACTS))
    if table is schema.revisions:
        return _copy_revisions(reading, writing)
    count = 0
    for rows in reading.execute(query).mappings().partitions(_CHUNK_ROWS):
        writing.execute(table.insert(), [dict(row) for row in rows])
        count += len(rows)
    return count


def _encrypt_anew(connection: Connection, before: SecretBox, after: SecretBox) -> None:
    """Have secrets encrypted with the cluster key of the store, not with that of the state directory."""
    table = schema.webhook_secrets
    for row in connection.execute(select(table)).all():
        sealed = {
            name: after.seal(row.tenant, before.read(row.tenant, value))
            for name, value in (("secret", row.secret), ("previous", row.previous))
            if value is not None
        }
        connection.execute(table.update().where(table.c.tenant == row.tenant).values(sealed))


def _copy_revisions(reading: Connection, writing: Connection) -> int:
    """Counters go on from the higher one: a gateway that knew the store before must see that it changed."""
    table = schema.revisions
    rows = reading.execute(select(table)).all()
    for row in rows:
        present = schema.read_revision(writing, schema.Topic(row.topic))
        value = max(row.value, present) + 1
        writing.execute(table.update().where(table.c.topic == row.topic).values(value=value))
    return len(rows)


def _verify(connection: Connection, counts: Mapping[str, int], wrapped: int) -> None:
    """Raises StateError, which takes everything back."""
    for table in schema.metadata.sorted_tables:
        query = select(func.count()).select_from(table)
        expected = counts[table.name]
        if table is schema.facts:
            query = query.where(schema.facts.c.name.not_in(OWN_FACTS))
            expected += wrapped
        if table is schema.revisions:
            query = query.where(table.c.topic.in_(list(schema.Topic)))
        found = connection.execute(query).scalar_one()
        if found != expected:
            raise StateError(
                f"{table.name} has {found} rows after the import, not {expected}: nothing was kept"
            )
