"""Which requests are identical, and what is kept of their answers. Pure data, ``now`` is an argument.

Two requests are identical when one tenant sends them, they may be answered by the same model and version in
the same places, and the engine would get the same of both, but for what surely changes no answer.

Answers are kept as long as they are the latest used, none beyond its time, never more than there is room for.
Bytes are counted exactly as far as answers go, and :data:`OVERHEAD_BYTES` stand for the objects around each.
What is being collected counts like what is kept; up to half of the room is made free for it.
"""

import hashlib
import heapq
import itertools
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from gateway.domain.request import Request
from gateway.observability.gauges import Family, single
from shared.protocol.messages import Headers

_UNREAD = frozenset(
    {
        *("content-length", "user-agent", "accept-language", "idempotency-key", "origin", "referer"),
        *("traceparent", "tracestate", "baggage", "b3", "dnt", "priority", "date", "pragma", "cache-control"),
    }
)
"""Header fields that engines get and that change no answer."""

_UNREAD_PREFIXES = ("sec-", "x-b3-", "x-datadog-", "x-request-", "x-amzn-", "cf-")

_WHO = ("user", "prompt_cache_key", "safety_identifier")
"""Members that say on whose behalf it is asked. In answers of the route ``responses`` they are repeated."""

_AS_ZERO = bytes.maketrans(b"123456789", b"000000000")
_LONG_NUMBER = b"0" * 16
"""May lose digits when it is read; then the body counts as it is written."""


class CacheKey(NamedTuple):
    """The key that identical requests of one tenant share. Tenants never share entries."""

    tenant: str
    digest: bytes
    """SHA-256."""


def key_of(request: Request, members: Mapping[str, Any]) -> CacheKey:
    """``members`` is what the request's body, which was read whole, says."""
    headers = sorted(
        (name, value)
        for name, value in request.headers
        if name not in _UNREAD and not name.startswith(_UNREAD_PREFIXES)
    )
    about = (
        request.model,
        request.version,
        None if request.where is None else str(request.where),
        request.method,
        request.path,
        request.route,
        request.streaming,
        request.usage.value,
        headers,
    )
    tenant = request.principal.tenant
    digest = hashlib.sha256(orjson.dumps((tenant, *about)))
    digest.update(b"\n")  # which JSON has nowhere: what comes before cannot run on into the body
    digest.update(_canonical(request, members))
    return CacheKey(tenant, digest.digest())


def _canonical(request: Request, members: Mapping[str, Any]) -> bytes:
    """The body with its members in order and without those that change nothing."""
    if _LONG_NUMBER in request.body.prefix.translate(_AS_ZERO):
        return b"\n" + request.body.prefix
    left_out = () if request.route == "responses" else _WHO
    kept = {name: value for name, value in members.items() if name not in left_out}
    try:
        return orjson.dumps(kept, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:  # nested deeper than it can be written
        return b"\n" + request.body.prefix


OVERHEAD_BYTES = 1024
"""For each answer: the objects it is made of and its places in the tables."""

_SLACK = 64


@dataclass(frozen=True, slots=True)
class CachedAnswer:
    """A complete answer with status 200."""

    headers: Headers
    """Those that describe its content, without its length."""
    body: bytes
    agent: str
    """The agent that computed it."""
    version: str
    """The version of the deployment that computed it."""
    kept_s: float
    """When it was complete."""
    expires_s: float

    @property
    def size_bytes(self) -> int:
        """Its size in the cache's memory, overhead included."""
        named = sum(len(name) + len(value) for name, value in self.headers)
        return OVERHEAD_BYTES + len(self.body) + named + len(self.agent) + len(self.version)

    def age_s(self, now: float) -> int:
        """As the header ``age`` has it (RFC 9111 §5.1)."""
        return max(0, int(now - self.kept_s))


class AnswerCache:
    """Entries by key, the one used longest ago first."""

    def __init__(self, cache_bytes: int, entries: int) -> None:
        self._most_bytes = cache_bytes
        self._most = entries
        self._entries: OrderedDict[CacheKey, CachedAnswer] = OrderedDict()
        self._expiries: list[tuple[float, int, CacheKey]] = []
        self._numbers = itertools.count()
        self.kept_bytes = 0
        self.reserved_bytes = 0
        """Bytes reserved for answers that are being collected."""
        self.evicted = 0
        """How many entries were removed to make room for others."""

    def figures(self) -> list[Family]:
        """What is exposed of it, for a :class:`gateway.observability.gauges.FamilyCollector`."""
        used_bytes = self.kept_bytes + self.reserved_bytes
        return [
            single("cache_bytes", "Memory for answers that are kept or being collected.", used_bytes),
            single("cache_entries", "Answers that are kept.", len(self)),
            single(
                "cache_evictions", "Answers that went to make room for others.", self.evicted, counter=True
            ),
        ]

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: CacheKey, now: float) -> CachedAnswer | None:
        """What is kept, which counts as used now."""
        self._expire(now)
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
        return entry

    def put(self, key: CacheKey, entry: CachedAnswer, now: float) -> bool:
        """Keep ``entry``, instead of what there was of this key. False when there is no room for it."""
        self._expire(now)
        self._drop(key)
        if now >= entry.expires_s or not self._make_room(entry.size_bytes):
            return False
        self._entries[key] = entry
        self.kept_bytes += entry.size_bytes
        heapq.heappush(self._expiries, (entry.expires_s, next(self._numbers), key))
        if len(self._expiries) > 2 * len(self._entries) + _SLACK:
            self._expiries = [
                (each.expires_s, next(self._numbers), key) for key, each in self._entries.items()
            ]
            heapq.heapify(self._expiries)
        while len(self._entries) > self._most:
            self._evict()
        return True

    def reserve(self, size_bytes: int) -> bool:
        """Count so many bytes that are being collected, to be released by :meth:`release`. False, and
        nothing is counted, when there is no room for them."""
        if self.reserved_bytes + size_bytes > self._most_bytes // 2 or not self._make_room(size_bytes):
            return False
        self.reserved_bytes += size_bytes
        return True

    def release(self, size_bytes: int) -> None:
        """They are collected no more, or are kept now."""
        assert size_bytes <= self.reserved_bytes
        self.reserved_bytes -= size_bytes

    def _make_room(self, size_bytes: int) -> bool:
        if self.reserved_bytes + size_bytes > self._most_bytes:
            return False
        while self.kept_bytes + self.reserved_bytes + size_bytes > self._most_bytes:
            self._evict()
        return True

    def _evict(self) -> None:
        _, entry = self._entries.popitem(last=False)
        self.kept_bytes -= entry.size_bytes
        self.evicted += 1

    def _drop(self, key: CacheKey) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.kept_bytes -= entry.size_bytes

    def _expire(self, now: float) -> None:
        while self._expiries and self._expiries[0][0] <= now:
            _, _, key = heapq.heappop(self._expiries)
            entry = self._entries.get(key)
            if entry is not None and entry.expires_s <= now:
                self._drop(key)
