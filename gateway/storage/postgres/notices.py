"""How a process learns at once that another one has changed the database, and surely within a second.

Whoever commits an administrative change moves a counter in the same transaction and notifies. A notification
only ends a pause early: what counts is the counter, which is looked at several times a second anyway, so that
a connection that is silently cut hides nothing.

What processes tell each other of jobs comes on a channel of its own, and moves no counter.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Sequence

import psycopg

from gateway.storage.changes import SOURCE
from gateway.storage.errors import StateError
from gateway.storage.postgres.connections import SERVING, BoundedConnection, Connector
from gateway.storage.postgres.failures import translated

LOOK_S = 0.4
"""Between two looks at the counter."""

KNOWN_S = 1.0
"""So long a look is good for: what was revoked longer ago is revoked in every process."""

ANSWER_S = 2.0
"""A server that does not say the counter within this is away."""

COUNTER = "changes"
"""The topic in ``revisions`` that moves with every administrative commit."""

CHANNEL = "'trunkline_' || current_schema()::regnamespace::oid"
"""An SQL expression: stores in schemas of one database have channels of their own."""

JOBS_CHANNEL = "'trunkline_jobs_' || current_schema()::regnamespace::oid"
"""The same, of what there is to tell of jobs."""

TELL = f"SELECT pg_notify({JOBS_CHANNEL}, %(text)s)"

SERVED_NAME = f"'{SERVING} ' || current_schema()::regnamespace::oid"
"""An SQL expression: what a gateway calls the connection on which it looks, so that others know of it."""

READ_COUNTER = f"SELECT value FROM revisions WHERE topic = '{COUNTER}'"  # noqa: S608
ANNOUNCE = (
    f"UPDATE revisions SET value = value + 1 WHERE topic = '{COUNTER}'",  # noqa: S608
    f"SELECT pg_notify({CHANNEL}, '')",
)

_SLICE_S = 0.1
"""How long the listening thread may overlook that it is to end."""


class ChangeWatch:
    """Reads the counter, and waits for notifications, on connections of its own.

    ``read`` may be called from any thread, one at a time; ``wait`` belongs to one.
    """

    def __init__(self, connector: Connector, hear: Callable[[str], None] = lambda text: None) -> None:
        """``hear`` is called with what is told of jobs, by whoever waits; it raises nothing."""
        self._connector = connector
        self._hear = hear
        self._jobs_channel = ""
        self._looking: BoundedConnection | None = None
        self._listening: BoundedConnection | None = None
        self.connections = 0
        """On which the counter was looked at so far. Each may lead to another server."""

    def read(self) -> int:
        """The counter: another number once something was changed, and on every new connection, which may lead
        to another server. Raises StateError."""
        had_connection, began_s = self._looking is not None, time.monotonic()
        while True:
            try:
                return self._look()
            except psycopg.Error as error:
                _close(self._looking)
                self._looking = None
                was_waiting = time.monotonic() - began_s >= ANSWER_S
                if not had_connection or was_waiting:  # else the server may be there again since
                    raise self._state_error(error) from error
                had_connection = False

    def wait(self, at_most_s: float, stopping: threading.Event) -> None:
        """Return at a notification, when ``stopping`` is set, or after ``at_most_s``."""
        until_s = time.monotonic() + at_most_s
        try:
            if self._listening is None:
                self._listening = self._listen()
                return  # what was committed before it listened is to be looked at
            while (left_s := until_s - time.monotonic()) > 0 and not stopping.is_set():
                heard = self._listening.notifies(timeout=min(left_s, _SLICE_S), stop_after=1)
                if self._is_changed(list(heard)):
                    return
        except psycopg.Error:
            _close(self._listening)
            self._listening = None
            stopping.wait(max(0.0, until_s - time.monotonic()))

    def close(self) -> None:
        """Close the connections. Idempotent; nothing else may be called meanwhile."""
        _close(self._looking)
        _close(self._listening)
        self._looking = self._listening = None

    def _is_changed(self, heard: Sequence[psycopg.Notify]) -> bool:
        """Whether the counter has moved. What is told of jobs is passed on."""
        for each in heard:
            if each.channel == self._jobs_channel:
                self._hear(each.payload)
        return any(each.channel != self._jobs_channel for each in heard)

    def _look(self) -> int:
        if self._looking is None:
            self._looking = self._connector.connect(autocommit=True)
            self.connections += 1
            self._looking.answer_s = ANSWER_S
            if self._connector.serve:
                self._looking.execute(f"SELECT set_config('application_name', {SERVED_NAME}, false)")
        row = self._looking.execute(READ_COUNTER).fetchone()
        if row is None:
            raise psycopg.ProgrammingError("the counter of changes is missing")
        return int(row[0]) + self.connections * SOURCE

    def _listen(self) -> BoundedConnection:
        connection = self._connector.connect(autocommit=True)
        connection.answer_s = ANSWER_S
        try:
            channels = connection.execute(f"SELECT {CHANNEL}, {JOBS_CHANNEL}").fetchone()
            assert channels is not None
            for channel in channels:
                connection.execute(f'LISTEN "{channel}"')
            self._jobs_channel = channels[1]
        except BaseException:
            _close(connection)
            raise
        return connection

    def _state_error(self, error: psycopg.Error) -> StateError:
        found = translated(error, self._connector.place, self._connector.hide(str(error)))
        return found if isinstance(found, StateError) else StateError(str(found))


def _close(connection: BoundedConnection | None) -> None:
    """Close it, whatever state it is in."""
    if connection is not None:
        with contextlib.suppress(psycopg.Error):
            connection.close()
