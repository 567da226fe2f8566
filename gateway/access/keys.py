"""Who holds a client API key: every key in memory by its digest, as fresh as the store."""

import hmac
from collections.abc import Callable
from dataclasses import dataclass

from gateway.domain import Principal
from gateway.errors import Unauthenticated
from gateway.store import KeyRecord, Store
from gateway.store.keys import PREFIX, digest_of
from gateway.where import Where

KEY_CHARS = 256
"""Longest text that is looked up at all; a key has 49 characters."""


@dataclass(frozen=True, slots=True)
class _Entry:
    digest: bytes
    principal: Principal
    revoked: bool


class KeyRing:
    """Looks keys up in a few microseconds, whatever their number.

    A change made by another process (``trunkline key revoke``) counts from the next call on: each call
    compares the store's data version, and only when it moved reads the keys that changed. Belongs to one
    thread.

    A key is found by its SHA-256, so what a caller can learn from timing is about digests of keys that
    nobody can choose, and the digest found is compared in constant time.
    """

    def __init__(self, store: Store) -> None:
        """Reads every key. Raises StateError."""
        self._store = store
        self._entries: dict[bytes, _Entry] = {}
        self._tenants: dict[str, str] = {}
        self._wheres: dict[Where | None, Where | None] = {}
        self._data_version = -1
        self._revision = 0
        self._changed: Callable[[], None] | None = None
        self._refresh()

    def when_changed(self, changed: Callable[[], None]) -> None:
        """``changed`` is called before a request is let in when anybody has changed the store since the last
        one, whatever it was that changed."""
        self._changed = changed

    def __len__(self) -> int:
        """Keys in memory, revoked ones too: as many as the store has."""
        return len(self._entries)

    def authenticate(self, presented: str) -> Principal:
        """Who holds the key ``presented``.

        Raises Unauthenticated, and StateError when the store cannot be asked: nobody is let in on old news.
        """
        self._refresh()
        if not presented:
            raise Unauthenticated(
                "No API key was given. Send it as 'Authorization: Bearer sk-tl-…' "
                "(in an OpenAI client: the api_key argument)."
            )
        if not presented.startswith(PREFIX) or len(presented) > KEY_CHARS:
            raise Unauthenticated(
                "This is not an API key of this gateway: its keys begin with 'sk-tl-'. "
                "Ask whoever runs it for one (trunkline key create)."
            )
        digest = digest_of(presented)
        entry = self._entries.get(digest)
        if entry is None or not hmac.compare_digest(entry.digest, digest):
            raise Unauthenticated("Incorrect API key: this gateway knows no such key. Was all of it copied?")
        if entry.revoked:
            raise Unauthenticated("This API key was revoked. Ask whoever runs this gateway for a new one.")
        return entry.principal

    def _refresh(self) -> None:
        data_version = self._store.data_version()
        if data_version == self._data_version:
            return
        self._revision, changed = self._store.keys.changed_since(self._revision)
        for record in changed:
            self._entries[record.digest] = self._entry(record)
        if self._changed is not None:
            self._changed()
        self._data_version = data_version

    def _entry(self, record: KeyRecord) -> _Entry:
        tenant = self._tenants.setdefault(record.tenant, record.tenant)
        principal = Principal(
            record.id, record.name, tenant, self._wheres.setdefault(record.where, record.where)
        )
        return _Entry(record.digest, principal, record.revoked_s is not None)
