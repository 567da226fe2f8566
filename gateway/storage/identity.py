"""The gateway's own key: who holds it a :class:`GatewayKeyHolder` knows, which one counts the database.

The database names by fingerprint the key that counts and the one before (PROTOCOL §8.12), so that a change is
over with its transaction.
"""

import threading
from collections.abc import Mapping

from sqlalchemy import Connection, delete, or_, select

from gateway.storage import schema
from gateway.storage.acts import note_act
from gateway.storage.database import Database
from gateway.storage.errors import KeyStillCounts
from gateway.storage.key_files import GatewayKeyHolder
from gateway.storage.rules import OVERLAP_S, check_seconds
from shared.identity import GatewayIdentity, GatewayKeys, generate_key

_CURRENT = "gateway key fingerprint"
_PREVIOUS = "previous gateway key fingerprint"
_UNTIL = "previous gateway key until_s"
_FACTS = (_CURRENT, _PREVIOUS, _UNTIL)

_LOOKS = 3
"""Another process may be giving the files their names while they are looked for."""


class IdentityStore:
    """The gateway's keys. Every method raises StateError when the database or a key's file fails."""

    def __init__(self, database: Database, holder: GatewayKeyHolder, *, at_once: bool = True) -> None:
        """Makes the key the first time, under the database's write lock, so that processes that start at once
        agree on it. With ``at_once`` False the key is looked for when it is first asked for: a command that
        does without it needs no access to it."""
        self._database = database
        self._holder = holder
        self._lock = threading.Lock()
        self._data_version = -1
        self._facts: Mapping[str, str] = {}
        self.known: GatewayKeys
        """Those of when :attr:`keys` was read last."""
        if at_once:
            self._begin()

    @property
    def keys(self) -> GatewayKeys:
        """Those of now, whoever changed them. Costs microseconds while nobody does, else waits for the disk:
        not for an event loop's thread."""
        if self._data_version == -1:
            self._begin()
        elif self._database.changes.read() != self._data_version:
            self._refresh()
        return self.known

    def fingerprint_until(self, wall_s: float) -> bytes:
        """Of the key before if it counts until then, else of the one that counts: what a join token carries,
        32 bytes. No private key is read where the database says which keys there are."""
        if not self.is_made():
            self._make_first()
        with self._database.read() as connection:
            facts = self._read(connection)
        held, current = self._holder.held(facts), facts[_CURRENT]
        if current not in held:
            raise self._holder.unusable(current)
        previous = facts.get(_PREVIOUS, "")
        counts = previous in held and wall_s < float(facts.get(_UNTIL, 0.0))
        return bytes.fromhex(previous if counts else current)

    def is_made(self) -> bool:
        """Whether the gateway has a key, wherever that is held."""
        with self._database.read() as connection:
            return _CURRENT in self._read(connection)

    def rotate(self, overlap_s: float, wall_s: float) -> GatewayKeys:
        """Make a new key; the one there was counts for ``overlap_s`` more.

        Raises BadValue for a length that is not allowed, and KeyStillCounts while an earlier key does; with
        ``overlap_s`` 0 that ends.
        """
        check_seconds("an overlap lasts from", overlap_s, OVERLAP_S, least_s=0)
        key = generate_key()
        with self._database.write() as connection:
            facts = self._read(connection)
            keys = self._keys_of(facts)
            if overlap_s and keys.previous_at(wall_s) is not None:
                raise KeyStillCounts(
                    "the key before this one still counts, and agents trust two keys at most: wait until "
                    "that is over, or end it now with an overlap of 0s: agents that are away must join again"
                )
            self._settle(facts)
            for name, value in self._holder.keep_next(key).items():
                self._write(connection, name, value)
            self._write(connection, _CURRENT, GatewayIdentity(key).fingerprint.hex())
            _forget(connection, _PREVIOUS, _UNTIL)
            if overlap_s:
                self._write(connection, _PREVIOUS, keys.current.fingerprint.hex())
                self._write(connection, _UNTIL, repr(float(int(wall_s + overlap_s))))
            self._forget_unnamed(connection)
            schema.next_revision(connection, schema.Topic.AGENTS)
            note_act(connection, "gateway.rotate_key", key=GatewayIdentity(key).id, overlap_s=overlap_s)
        with self._database.write() as connection:
            self._settle(self._read(connection))
        return self.keys

    def forget_previous(self, wall_s: float) -> bool:
        """Remove the key before once it counts no more. Whether there was one to remove."""
        if not _is_over(self.keys, wall_s):
            return False
        with self._database.write() as connection:
            if not _is_over(self._keys_of(self._read(connection)), wall_s):
                return False  # another process has changed the key again meanwhile
            _forget(connection, _PREVIOUS, _UNTIL)
            self._forget_unnamed(connection)
            self._settle(self._read(connection))
            schema.next_revision(connection, schema.Topic.AGENTS)
        return True

    def _write(self, connection: Connection, name: str, value: str) -> None:
        connection.execute(self._database.upsert(schema.facts), {"name": name, "value": value})

    def _begin(self) -> None:
        if not self.is_made():
            self._make_first()
        self._refresh()

    def _make_first(self) -> None:
        with self._database.write() as connection:
            if _CURRENT not in self._read(connection):
                identity, facts = self._holder.make_first()
                for name, value in {**facts, _CURRENT: identity.fingerprint.hex()}.items():
                    self._write(connection, name, value)

    def _refresh(self) -> None:
        with self._lock:
            data_version = self._database.changes.read()
            with self._database.read() as connection:
                facts = self._read(connection)
            if facts != self._facts:
                self.known = self._keys_of(facts)
                self._facts = facts
            self._data_version = data_version

    def _keys_of(self, facts: Mapping[str, str]) -> GatewayKeys:
        """The keys that the database names. Raises IdentityUnusable."""
        for look in range(_LOOKS):
            found = self._holder.found(facts)
            current = found.get(facts[_CURRENT])
            previous = found.get(facts.get(_PREVIOUS, ""))
            missing = current is None or (previous is None and _PREVIOUS in facts)
            if not missing or look == _LOOKS - 1:
                break
        if current is None:
            raise self._holder.unusable(facts[_CURRENT])
        # Without the file of the key before the gateway still is the gateway.
        return GatewayKeys(current, previous, float(facts.get(_UNTIL, 0.0)) if previous is not None else 0.0)

    def _settle(self, facts: Mapping[str, str]) -> None:
        """Call it under the database's write lock."""
        self._holder.settle(self._keys_of(facts))

    def _read(self, connection: Connection) -> dict[str, str]:
        """The facts about the keys, the holder's too."""
        name = schema.facts.c.name
        prefix = self._holder.fact_prefix
        ours = name.in_(_FACTS) if prefix is None else or_(name.in_(_FACTS), name.startswith(prefix))
        return {row.name: row.value for row in connection.execute(select(schema.facts).where(ours))}

    def _forget_unnamed(self, connection: Connection) -> None:
        """Remove keys of the holder's that are neither the one that counts nor the one before."""
        prefix = self._holder.fact_prefix
        if prefix is None:
            return
        facts = self._read(connection)
        named = {prefix + facts[each] for each in (_CURRENT, _PREVIOUS) if each in facts}
        _forget(connection, *(name for name in facts if name.startswith(prefix) and name not in named))


def _is_over(keys: GatewayKeys, wall_s: float) -> bool:
    """Whether there is a key before that counts no more."""
    return keys.previous is not None and keys.previous_at(wall_s) is None


def _forget(connection: Connection, *names: str) -> None:
    connection.execute(delete(schema.facts).where(schema.facts.c.name.in_(names)))
