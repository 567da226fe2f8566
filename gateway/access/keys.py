"""Who holds a client API key: every key in memory by its digest, as fresh as the store."""

import hmac
import math
import time
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from gateway.domain import Principal
from gateway.errors import Unauthenticated
from gateway.store import KeyRecord, Store
from gateway.store.keys import PREFIX, digest_of

KEY_CHARS = 256
"""Longest text that is looked up at all; a key has 49 characters."""

_T = TypeVar("_T", bound=Hashable)


@dataclass(frozen=True, slots=True)
class _Entry:
    """One secret. A key that is being rotated has two."""

    digest: bytes = field(repr=False)
    principal: Principal
    until_s: float
    """Unix time."""
    end: str
    """What is said of it from then on."""
    revoked: bool


class KeyRing:
    """Looks keys up in a few microseconds, whatever their number.

    A change made by another process (``trunkline key revoke``) counts from the next call on: each call
    compares the store's data version, and only when it moved reads the keys that changed. Belongs to one
    thread.

    A key is found by its SHA-256, so what a caller can learn from timing is about digests of keys that
    nobody can choose, and the digest found is compared in constant time.
    """

    def __init__(self, store: Store, wall: Callable[[], float] = time.time) -> None:
        """Reads every key. ``wall`` gives Unix time, for the ends of keys. Raises StateError."""
        self._store = store
        self._wall = wall
        self._entries: dict[bytes, _Entry] = {}
        self._digests: dict[str, tuple[bytes, ...]] = {}
        """By the key's id."""
        self._same: dict[Hashable, Hashable] = {}
        """What many keys have in common is kept once."""
        self._used_s: dict[str, float] = {}
        self._data_version = -1
        self._revision = 0
        self._changed: Callable[[], None] | None = None
        self.refresh()

    def when_changed(self, changed: Callable[[], None]) -> None:
        """``changed`` is called before a request is let in when anybody has changed the store since the last
        one, whatever it was that changed."""
        self._changed = changed

    def __len__(self) -> int:
        """Keys in memory, revoked ones too: as many as the store has."""
        return len(self._digests)

    def authenticate(self, presented: str) -> Principal:
        """Who holds the key ``presented``.

        Raises Unauthenticated, and StateError when the store cannot be asked: nobody is let in on old news.
        """
        self.refresh()
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
        now_s = self._wall()
        if now_s >= entry.until_s:
            raise Unauthenticated(entry.end, code="key_expired")
        self._used_s[entry.principal.key_id] = now_s
        return entry.principal

    def take_used(self) -> dict[str, float]:
        """When keys were last used since the last call, by id."""
        used_s, self._used_s = self._used_s, {}
        return used_s

    def put_back_used(self, used_s: dict[str, float]) -> None:
        """What :meth:`take_used` gave could not be written."""
        self._used_s = used_s | self._used_s

    def refresh(self) -> None:
        """Read what has changed in the store, if anything has. Raises StateError."""
        data_version = self._store.data_version()
        if data_version == self._data_version:
            return
        self._revision, changed = self._store.keys.changed_since(self._revision)
        for record in changed:
            self._take(record)
        if self._changed is not None:
            self._changed()
        self._data_version = data_version

    def _take(self, record: KeyRecord) -> None:
        for digest in self._digests.get(record.id, ()):
            del self._entries[digest]
        entries = {entry.digest: entry for entry in _entries(record, self._principal(record))}
        self._entries |= entries
        self._digests[record.id] = tuple(entries)

    def _principal(self, record: KeyRecord) -> Principal:
        return Principal(
            record.id,
            record.name,
            self._shared(record.tenant),
            self._shared(record.where),
            scopes=self._shared(record.scopes),
            role=record.role,
            rates=self._shared(record.rates),
        )

    def _shared(self, value: _T) -> _T:
        return self._same.setdefault(value, value)  # type: ignore[return-value]


def _entries(record: KeyRecord, principal: Principal) -> Iterator[_Entry]:
    revoked = record.revoked_s is not None
    until_s = math.inf if record.expires_s is None else record.expires_s
    end = "This API key has expired. Ask whoever runs this gateway for a new one."
    yield _Entry(record.digest, principal, until_s, end, revoked)
    if record.previous_digest is not None and record.previous_until_s is not None:
        if record.previous_until_s < until_s:
            until_s = record.previous_until_s
            end = "This API key was replaced by a new secret, and its time is over: use the new one."
        yield _Entry(record.previous_digest, principal, until_s, end, revoked)
