"""Connections to a PostgreSQL server that wait for nothing longer than they were told to.

A server that is stopped, cut off or asleep is an error after seconds, not a thread that hangs: the server
bounds statements and locks, the kernel unanswered packets, and the client the wait for an answer.
"""

import time
from collections.abc import Generator
from pathlib import Path
from typing import Any, TypeVar

import psycopg
from psycopg import OperationalError
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from sqlalchemy import Engine, QueuePool, create_engine, event

from gateway.domain.store_address import StoreAddress
from gateway.storage.database import BUSY_TIMEOUT_S
from gateway.storage.errors import StateUnwritable
from gateway.storage.statements import sharing_statements

STATEMENT_TIMEOUT_S = 10.0
"""How long the server works at one statement."""

CONNECT_TIMEOUT_S = 3
"""How long one host of the address may take to answer. libpq takes no less than 2."""

ANSWER_S = STATEMENT_TIMEOUT_S + 2.0
"""How long the client waits for any answer."""

UNANSWERED_MS = 3000
"""How long sent bytes may go without the other host's acknowledgement."""

SERVING, COMMAND = "trunkline gateway", "trunkline"
"""Names of our connections in ``pg_stat_activity``."""

_PASSWORD_BYTES = 4096
_SETTINGS = {
    "statement_timeout": int(STATEMENT_TIMEOUT_S * 1000),
    "lock_timeout": int(BUSY_TIMEOUT_S * 1000),
    "idle_in_transaction_session_timeout": 15_000,
    "client_min_messages": "warning",
}
_KEEPALIVE = {
    "keepalives": "1",
    "keepalives_idle": "10",
    "keepalives_interval": "3",
    "keepalives_count": "3",
    "tcp_user_timeout": str(UNANSWERED_MS),
}

R = TypeVar("R")


class BoundedConnection(psycopg.Connection[Any]):
    """Gives the connection up when an answer takes longer than ``answer_s``: then it cannot be used again."""

    answer_s: float = ANSWER_S

    def wait(self, gen: Generator[Any, Any, R], *args: Any, **kwargs: Any) -> R:
        return super().wait(self._bounded(gen), *args, **kwargs)

    def _bounded(self, gen: Generator[Any, Any, R]) -> Generator[Any, Any, R]:
        until_s = time.monotonic() + self.answer_s
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if not ready and time.monotonic() > until_s:
                    self.pgconn.finish()
                    raise OperationalError(f"no answer within {self.answer_s:g} s")
                wanted = gen.send(ready)
        except StopIteration as done:
            result: R = done.value
            return result


class Connector:
    """Opens connections to one address."""

    def __init__(self, address: StoreAddress, *, serve: bool) -> None:
        """``serve``: they are a gateway's, not a command's. Raises StateUnwritable for a password's file that
        cannot be read, or an address that libpq does not read."""
        try:
            given = conninfo_to_dict(address.url)
        except psycopg.Error:
            raise StateUnwritable(f"libpq cannot read the address of {address}: see its options") from None
        self.place = str(address)
        self.serve = serve
        ours: dict[str, Any] = {**_KEEPALIVE, "connect_timeout": str(CONNECT_TIMEOUT_S)}
        ours["application_name"] = SERVING if serve else COMMAND
        settings = " ".join(f"-c {name}={value}" for name, value in _SETTINGS.items())
        ours["options"] = f"{given.pop('options', None) or ''} {settings}".strip()
        if address.password_file is not None and not given.get("password"):
            ours["password"] = _read_password(address.password_file)
        self._secret = str(given.get("password") or ours.get("password") or "")
        self._conninfo = make_conninfo(**{**ours, **given})

    def connect(self, **options: Any) -> BoundedConnection:
        """Raises psycopg.Error."""
        return BoundedConnection.connect(self._conninfo, prepare_threshold=None, **options)

    def hide(self, text: str) -> str:
        """The text on one line, without the password should somebody have put it there."""
        line = " ".join(text.split())
        return line.replace(self._secret, "***") if self._secret else line

    def engine(self, connections: int) -> Engine:
        """A pool. A connection that broke while nobody used it is replaced when it is asked for."""
        engine = create_engine(
            "postgresql+psycopg://",
            poolclass=QueuePool,
            pool_size=connections,
            max_overflow=0,
            pool_timeout=BUSY_TIMEOUT_S,
            pool_pre_ping=True,
            hide_parameters=True,
            use_native_hstore=False,
        )

        def connect(_dialect: object, _record: object, _args: object, options: dict[str, Any]) -> Any:
            return self.connect(**options)

        event.listen(engine, "do_connect", connect)
        return sharing_statements(engine)


def _read_password(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_PASSWORD_BYTES).decode().rstrip("\r\n")
    except OSError as error:
        raise StateUnwritable.opening(path, error) from error
    except UnicodeDecodeError as error:
        raise StateUnwritable(f"{path} holds no password: it is no text in UTF-8") from error
