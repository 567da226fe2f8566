"""Statements that were compiled once for all databases of a process.

SQLAlchemy keeps what it made of a statement for each engine, and a database has two engines or three. Here
they share it, as do databases that a process opens one after the other, and processes that are forked from
one that has used a database. To compile a statement takes longer than SQLite needs to execute it.
"""

from typing import Any

from sqlalchemy import Engine
from sqlalchemy.util import LRUCache

_CAPACITY = 1000
"""More than there are, also with several forms of each."""


class StatementCache(LRUCache[Any, Any]):
    """As SQLAlchemy asks for it, but engines of the same kind find what one of them put there."""

    def get(self, key: Any, default: Any = None) -> Any:
        """``key`` begins with the engine's dialect."""
        return super().get(_of_kind(key), default)

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(_of_kind(key), value)


def _of_kind(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same key for each engine whose statements have the same text: it has the same database, driver and
    version of the server."""
    dialect, *statement = key
    return (dialect.name, dialect.driver, getattr(dialect, "server_version_info", None), *statement)


_STATEMENTS = StatementCache(_CAPACITY)


def sharing_statements(engine: Engine) -> Engine:
    """``engine``, with the pool and the events that it has by now, and with statements that all share."""
    return engine.execution_options(compiled_cache=_STATEMENTS)
