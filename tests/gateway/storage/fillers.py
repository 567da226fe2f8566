"""Disks without room, for one store's database."""

import contextlib
from collections.abc import Iterator

from gateway.storage import Store


@contextlib.contextmanager
def full_database(store: Store) -> Iterator[None]:
    """While inside, what this store writes finds no room beyond the pages there are."""
    database = store._database

    def limit(pages: int) -> None:
        with database.write() as connection:
            connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")

    limit(1)  # SQLite takes the present size instead
    try:
        yield
    finally:
        limit(2**30)
