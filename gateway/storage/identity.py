"""The gateway's own key: kept in files beside the database, which knows which of them counts.

``gateway.key`` is the key. While it is being changed the next one is in ``gateway.next.key``; the one before
stays in ``gateway.previous.key`` for as long as it counts (PROTOCOL §8.12). The database says by fingerprint
which key is which: a change is over with its transaction, and a process that dies in the middle leaves
nothing undecided.
"""

import contextlib
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from sqlalchemy import Connection, delete, select

from gateway.storage import schema
from gateway.storage.acts import note_act
from gateway.storage.database import Database
from gateway.storage.errors import IdentityUnusable, KeyStillCounts, StateUnwritable
from gateway.storage.rules import OVERLAP_S, check_seconds
from shared.identity import (
    GatewayIdentity,
    GatewayKeys,
    KeyFileError,
    create_key_file,
    generate_key,
    load_key,
    save_key,
)

KEY_NAME = "gateway.key"
NEXT_NAME = "gateway.next.key"
PREVIOUS_NAME = "gateway.previous.key"

_CURRENT = "gateway key fingerprint"
_PREVIOUS = "previous gateway key fingerprint"
_UNTIL = "previous gateway key until_s"
_FACTS = (_CURRENT, _PREVIOUS, _UNTIL)

_LOOKS = 3
"""Another process may be giving the files their names while they are looked for."""


class IdentityStore:
    """The gateway's keys. Every method raises StateError when the database or a key's file fails."""

    def __init__(self, database: Database, state_dir: Path) -> None:
        """Makes the key the first time, under the database's write lock, so that processes that start at once
        agree on it."""
        self._database = database
        self._state_dir = state_dir
        self._lock = threading.Lock()
        self._data_version = -1
        self._facts: Mapping[str, str] = {}
        self.known: GatewayKeys
        """Those of when :attr:`keys` was read last."""
        with database.read() as connection:
            known = _CURRENT in _read(connection)
        if not known:
            self._make_first()
        self._refresh()

    @property
    def keys(self) -> GatewayKeys:
        """Those of now, whoever changed them. Costs microseconds while nobody does, else waits for the disk:
        not for an event loop's thread."""
        if self._database.changes.read() != self._data_version:
            self._refresh()
        return self.known

    def rotate(self, overlap_s: float, wall_s: float) -> GatewayKeys:
        """Make a new key; the one there was counts for ``overlap_s`` more.

        Raises BadValue for a length that is not allowed, and KeyStillCounts while an earlier key does; with
        ``overlap_s`` 0 that ends.
        """
        check_seconds("an overlap lasts from", overlap_s, OVERLAP_S, least_s=0)
        key = generate_key()
        with self._database.write() as connection:
            facts = _read(connection)
            keys = self._keys_of(facts)
            if overlap_s and keys.previous_at(wall_s) is not None:
                raise KeyStillCounts(
                    "the key before this one still counts, and agents trust two keys at most: wait until "
                    "that is over, or end it now with an overlap of 0s: agents that are away must join again"
                )
            self._settle(facts)
            with _key_file_errors():
                save_key(self._state_dir / NEXT_NAME, key)
            self._write(connection, _CURRENT, GatewayIdentity(key).fingerprint.hex())
            _forget(connection, _PREVIOUS, _UNTIL)
            if overlap_s:
                self._write(connection, _PREVIOUS, keys.current.fingerprint.hex())
                self._write(connection, _UNTIL, repr(float(int(wall_s + overlap_s))))
            schema.next_revision(connection, schema.Topic.AGENTS)
            note_act(connection, "gateway.rotate_key", key=GatewayIdentity(key).id, overlap_s=overlap_s)
        with self._database.write() as connection:
            self._settle(_read(connection))
        return self.keys

    def forget_previous(self, wall_s: float) -> bool:
        """Remove the key before once it counts no more. Whether there was one to remove."""
        if not _is_over(self.keys, wall_s):
            return False
        with self._database.write() as connection:
            if not _is_over(self._keys_of(_read(connection)), wall_s):
                return False  # another process has changed the key again meanwhile
            _forget(connection, _PREVIOUS, _UNTIL)
            self._settle(_read(connection))
        return True

    def _write(self, connection: Connection, name: str, value: str) -> None:
        connection.execute(self._database.upsert(schema.facts), {"name": name, "value": value})

    def _make_first(self) -> None:
        with self._database.write() as connection:
            if _CURRENT not in _read(connection):
                with _key_file_errors():
                    identity = GatewayIdentity(create_key_file(self._state_dir / KEY_NAME))
                self._write(connection, _CURRENT, identity.fingerprint.hex())

    def _refresh(self) -> None:
        with self._lock:
            data_version = self._database.changes.read()
            with self._database.read() as connection:
                facts = _read(connection)
            if facts != self._facts:
                self.known = self._keys_of(facts)
                self._facts = facts
            self._data_version = data_version

    def _keys_of(self, facts: Mapping[str, str]) -> GatewayKeys:
        """The keys that the database names. Raises IdentityUnusable."""
        for look in range(_LOOKS):
            found = self._in_files()
            current = found.get(facts[_CURRENT])
            previous = found.get(facts.get(_PREVIOUS, ""))
            missing = current is None or (previous is None and _PREVIOUS in facts)
            if not missing or look == _LOOKS - 1:
                break
        if current is None:
            raise self._unusable(facts[_CURRENT])
        # Without the file of the key before the gateway still is the gateway.
        return GatewayKeys(current, previous, float(facts.get(_UNTIL, 0.0)) if previous is not None else 0.0)

    def _in_files(self) -> dict[str, GatewayIdentity]:
        """Every key there is, by fingerprint. Raises IdentityUnusable for one that cannot be read."""
        found: dict[str, GatewayIdentity] = {}
        for name in (KEY_NAME, NEXT_NAME, PREVIOUS_NAME):
            with _key_file_errors():
                try:
                    identity = GatewayIdentity(load_key(self._state_dir / name))
                except KeyFileError as error:
                    if isinstance(error.__cause__, FileNotFoundError):
                        continue
                    raise
            found[identity.fingerprint.hex()] = identity
        return found

    def _unusable(self, known: str) -> IdentityUnusable:
        path = self._state_dir / KEY_NAME
        if not path.exists():
            return IdentityUnusable(
                f"the gateway's key {path} is gone, and agents trust no other ({known[:16]}…): restore it "
                "from a backup, or move gateway.db away too to begin anew (every agent must join again)"
            )
        return IdentityUnusable(
            f"{path} is another key than this database belongs to ({known[:16]}…): "
            "restore key and database from the same backup"
        )

    def _settle(self, facts: Mapping[str, str]) -> None:
        """Give the files the names of what they hold, and remove what does not count. Call it under the
        database's write lock."""
        key, following, before = (self._state_dir / name for name in (KEY_NAME, NEXT_NAME, PREVIOUS_NAME))
        keys = self._keys_of(facts)
        try:
            with _key_file_errors():
                if keys.previous is not None:
                    save_key(before, keys.previous.private_key)
                if following.exists():
                    if GatewayIdentity(load_key(following)).fingerprint == keys.current.fingerprint:
                        os.replace(following, key)
                    following.unlink(missing_ok=True)
            if keys.previous is None:
                before.unlink(missing_ok=True)
            for unfinished in self._state_dir.glob(".gateway*.key.*"):  # of processes that were killed
                unfinished.unlink(missing_ok=True)
        except OSError as error:
            raise StateUnwritable(
                f"the key files in {self._state_dir} cannot be put in order: {error.strerror}"
            ) from error


def _is_over(keys: GatewayKeys, wall_s: float) -> bool:
    """Whether there is a key before that counts no more."""
    return keys.previous is not None and keys.previous_at(wall_s) is None


@contextlib.contextmanager
def _key_file_errors() -> Iterator[None]:
    """What is wrong with a key's file is raised as IdentityUnusable."""
    try:
        yield
    except KeyFileError as error:
        raise IdentityUnusable(str(error)) from error


def _read(connection: Connection) -> dict[str, str]:
    query = select(schema.facts).where(schema.facts.c.name.in_(_FACTS))
    return {row.name: row.value for row in connection.execute(query)}


def _forget(connection: Connection, *names: str) -> None:
    connection.execute(delete(schema.facts).where(schema.facts.c.name.in_(names)))
