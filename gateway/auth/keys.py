"""Who holds a client API key: every key in memory by its digest, as fresh as the store."""

import hmac
import math
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from gateway.auth.refresher import StoreRefresher
from gateway.domain.errors import Unauthenticated
from gateway.domain.request import Principal
from gateway.storage import KeyRecord, Store
from gateway.storage.keys import PREFIX, digest_of

KEY_CHARS = 256
"""Longest text that is looked up at all; a key has 49 characters."""

IN_PLACE = 256
"""So many changed keys are taken up one by one, in less than a millisecond; of more a new ring is made."""

_T = TypeVar("_T", bound=Hashable)


class Credential(str):
    """What a client presents. Whoever keeps it for the client's next request keeps its digest too, which
    takes longer to make than all else of looking a key up."""

    __slots__ = ("digest",)

    def __new__(cls, presented: str) -> "Credential":
        made = super().__new__(cls, presented)
        made.digest = digest_of(presented)
        return made

    digest: bytes


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

    Each call compares the number of the store's changes, and only when it is another reads the keys that
    changed, in a thread. So a change made in this process, or by a command that is over (``trunkline key
    revoke``), counts from the next call on.
    Belongs to the event loop's thread.

    A key is found by its SHA-256, so what a caller can learn from timing is about digests of keys that
    nobody can choose, and the digest found is compared in constant time.
    """

    def __init__(self, store: Store, wall: Callable[[], float] = time.time) -> None:
        """Reads every key. ``wall`` gives Unix time, for the ends of keys. Raises StateError."""
        self._store = store
        self._wall = wall
        self._entries: dict[bytes, _Entry] = {}
        self._digests: dict[str, tuple[bytes, ...]] = {}
        """Digests of the secrets of each key, by its id."""
        self._same: dict[Hashable, Hashable] = {}
        """What many keys have in common is kept once. Belongs to whoever reads."""
        self._used_s: dict[str, float] = {}
        self._revision = 0
        self.refresher = StoreRefresher(store.changes, "keys")
        """Reads what has changed in the store before a request is let in: keys, and what else is added."""
        self.refresher.add(self._read)
        self.refresher.refresh_here()

    def __len__(self) -> int:
        """Keys in memory, revoked ones too: as many as the store has."""
        return len(self._digests)

    async def identify(self, presented: str) -> Principal:
        """Who holds the key ``presented``, by what the store says when it is called.

        Raises Unauthenticated, and StateError when the store cannot be asked: nobody is let in on old news.
        """
        if not self.refresher.is_fresh():
            await self.refresher.refresh()
        return self._holder(presented)

    async def identify_id(self, key_id: str) -> Principal:
        """Whose key has this id, by what the store says when it is called: for work that goes on after its
        client has shown the key. Raises as :meth:`identify` does."""
        if not self.refresher.is_fresh():
            await self.refresher.refresh()
        digests = self._digests.get(key_id)
        if not digests:
            raise Unauthenticated("The API key is no more.", code="key_unknown")
        entry = self._entries[digests[0]]
        return self._admitted(entry)

    def name_of(self, key_id: str) -> str | None:
        """The name of the key of this id, as it was read last; None where there is none."""
        digests = self._digests.get(key_id)
        return self._entries[digests[0]].principal.key_name if digests else None

    def authenticate(self, presented: str) -> Principal:
        """The same, reading the store in this thread where it has changed: not for an event loop's."""
        self.refresher.refresh_here()
        return self._holder(presented)

    def _holder(self, presented: str) -> Principal:
        if len(presented) > KEY_CHARS:
            raise _unknown(presented)
        digest = presented.digest if isinstance(presented, Credential) else digest_of(presented)
        entry = self._entries.get(digest)
        if entry is None or not hmac.compare_digest(entry.digest, digest):
            raise _unknown(presented)
        return self._admitted(entry)

    def _admitted(self, entry: _Entry) -> Principal:
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

    def _read(self) -> Callable[[], None]:
        """What has changed since the keys there are. Those of many are made and swapped whole, not one by
        one: whoever is let in meanwhile is so by the keys of before."""
        revision, changed = self._store.keys.changed_since(self._revision)
        found = {record.id: tuple(_entries(record, self._principal(record))) for record in changed}
        if len(found) <= IN_PLACE:
            return lambda: self._take(revision, found)
        entries, digests = dict(self._entries), dict(self._digests)
        _put(entries, digests, found)
        return lambda: self._swap(revision, entries, digests)

    def _take(self, revision: int, found: Mapping[str, tuple[_Entry, ...]]) -> None:
        _put(self._entries, self._digests, found)
        self._revision = revision

    def _swap(
        self, revision: int, entries: dict[bytes, _Entry], digests: dict[str, tuple[bytes, ...]]
    ) -> None:
        self._entries, self._digests, self._revision = entries, digests, revision

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


def _unknown(presented: str) -> Unauthenticated:
    """What is said of a text that is no key."""
    if not presented:
        return Unauthenticated(
            "No API key was given. Send it as 'Authorization: Bearer sk-tl-…' "
            "(in an OpenAI client: the api_key argument)."
        )
    if not presented.startswith(PREFIX) or len(presented) > KEY_CHARS:
        return Unauthenticated(
            "This is not an API key of this gateway: its keys begin with 'sk-tl-'. "
            "Ask whoever runs it for one (trunkline key create)."
        )
    return Unauthenticated("Incorrect API key: this gateway knows no such key. Was all of it copied?")


def _put(
    entries: dict[bytes, _Entry],
    digests: dict[str, tuple[bytes, ...]],
    found: Mapping[str, tuple[_Entry, ...]],
) -> None:
    """Keys that have changed in the place of what was known of them, by their ids."""
    for key_id, its in found.items():
        for digest in digests.get(key_id, ()):
            del entries[digest]
        entries.update((entry.digest, entry) for entry in its)
        digests[key_id] = tuple(entry.digest for entry in its)


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
